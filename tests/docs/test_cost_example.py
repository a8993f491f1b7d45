"""The formulas of docs/cost-model-background.md, written down again, and its example: they are the prediction's."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from math import log

import pytest

from hybridnn import MLP
from hybridnn.config.settings import load_settings
from hybridnn.cost.machine import ElementCost, PassCost
from hybridnn.cost.machine_file import require_machine
from hybridnn.cost.plan import best_exact
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import predict
from hybridnn.nn.optimizers import SGD, Adam, Optimizer
from hybridnn.pipeline.layout import Layout
from hybridnn.runs.workload import workload_from_settings
from reference.pages import ROOT

TERM = re.compile(r"^(\w+) +([\d.+·()]+) = ([\d.]+) (µs|bytes)(?:, .*)?$", re.MULTILINE)


def exactly(text: str) -> Decimal:
    """The value of a term, without rounding."""
    return Decimal(eval(re.sub(r"[\d.]+", lambda found: f"Decimal('{found[0]}')", text.replace("·", "*"))))


def test_the_example_is_computed_to_its_last_digit_and_is_the_prediction() -> None:
    page = (ROOT / "docs/cost-model-background.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^`hybridnn plan (.*)`$", page, re.MULTILINE)
    words = shlex.split(command)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--ranks"] == "1"
    workload = workload_from_settings(load_settings(None, [b for a, b in pairwise(words) if a == "--set"]))
    predicted = best_exact(workload, require_machine(options["--machine"]), 1)
    sums: dict[str, Decimal] = defaultdict(Decimal)
    terms = TERM.findall(page)
    assert len(terms) == 11
    for part, term, printed, _ in terms:
        assert exactly(term) == Decimal(printed), term
        sums[part] += Decimal(printed)
    assert sums.pop("memory") == predicted.memory_bytes
    (step,) = re.findall(r"^step +([\d.]+) µs$", page, re.MULTILINE)
    assert Decimal(step) == sum(sums.values())
    assert float(step) * 1e-6 == pytest.approx(predicted.seconds_per_step, rel=1e-12)
    parts = {**predicted.instructions, "overhead": predicted.breakdown.overhead}
    assert {part: float(value) * 1e-6 for part, value in sums.items()} == pytest.approx(parts, rel=1e-12)


@pytest.mark.parametrize(
    ("sizes", "b", "optimizer", "s"),
    [
        ((30, 100, 7), 60, SGD(momentum=0.0), 0),
        ((784, 1100, 1300, 10), 33, Adam(), 2),  # weights and activations that are not cached, and narrow products
        ((16, 640, 639, 640, 3), 5000, SGD(), 1),
    ],
)
def test_the_formulas_are_those_of_the_prediction(sizes: tuple[int, ...], b: int, optimizer: Optimizer, s: int) -> None:
    machine = require_machine("cluster-1024")
    c = machine.compute[0].model_copy(update={"noise": 0.2})
    machine = machine.model_copy(update={"compute": (c,)})

    def cached(elements: int) -> bool:
        return 4 * elements < c.cache_bytes

    def one_pass(cost: PassCost, m: int, n: int) -> float:
        weight = cost.weight_seconds + (0 if cached(m * n) else cost.uncached_weight_seconds)
        across = b * (m * cost.output_seconds + n * cost.input_seconds)
        return cost.call_seconds + across + m * n * weight + b * m * n * cost.multiply_add_seconds

    def elements(cost: ElementCost, k: int, fits: bool = True) -> float:
        return cost.call_seconds + k * (cost.number_seconds + (0 if fits else cost.uncached_number_seconds))

    layers = list(pairwise(sizes))
    relu, hidden = c.activations["relu"], [b * m for m in sizes[1:-1]]
    padded = sum(-(-k // 16) * 16 for n, m in layers for k in (n * m, m))
    update = c.updates[("sgd", "momentum", "adam")[s]]
    expected = {
        "forward": sum(one_pass(c.forward, m, n) for n, m in layers)
        + sum(elements(relu.forward, k, cached(k)) for k in hidden),
        "backward": sum(one_pass(c.weight_gradient, m, n) for n, m in layers)
        + sum(one_pass(c.input_gradient, m, n) for n, m in layers[1:])
        + sum(elements(relu.gradient, k, cached(k)) for k in hidden),
        "loss": elements(c.losses["cross_entropy"], b * sizes[-1]),
        "update": elements(update, padded, cached((2 + s) * padded)),
    }
    overhead = elements(c.load, b * sizes[0]) + elements(c.load, b) + 6 * c.instruction_seconds + c.step_seconds
    noise = 1 + 0.2 * (1 - log(2))
    workload = Workload(MLP(sizes), 10_000, b, optimizer=optimizer)
    one = Layout.uniform([(1, 1)], len(layers))
    predicted = predict(workload, one, machine)
    assert predicted.instructions == pytest.approx({part: noise * value for part, value in expected.items()})
    assert predicted.breakdown.overhead == pytest.approx(noise * overhead)
    assert predicted.seconds_per_step == pytest.approx(noise * (sum(expected.values()) + overhead))

    h = max(sizes[1:])
    memory = 2 * padded + 1 + s * padded + 2 * min(padded, 65536) + b * (sum(sizes) + 2) + b * (2 * h + 3)
    assert predicted.memory_bytes == 4 * (memory + (min(b, 48) * h if h >= 640 else 0))

    # Four replicas in one array: of its slices, each rank adds up and updates one.
    shared = replace(one, stages=((4, 1),), shared_replicas=True, node_ranks=4)
    part = min(-(-padded // (4 * 64)) * 64, padded)
    fits = cached(part * (4 + 1 + s))
    seconds = elements(c.packing, 3 * part, fits) + elements(update, part, fits)
    noise = 1 + 0.2 * (1 + 1 / 2 + 1 / 3 + 1 / 4 - log(2))
    assert predict(workload, shared, machine).instructions["update"] == pytest.approx(noise * seconds)
