"""Calibration of computing: measured passes, element-wise work and training steps, and the costs fitted to them.

All ranks that are to be busy call these functions at the same time, so that they share caches and memory bandwidth as
in training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from math import ceil, prod
from statistics import median
from time import perf_counter
from timeit import Timer
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.cost.calibration.communication import before, sleeping_barrier
from hybridnn.cost.calibration.fit import LinearFit, fit_linear, fit_noise
from hybridnn.cost.machine import ActivationCost, Compute, ElementCost, Machine, NetworkLink, PassCost, Segment
from hybridnn.cost.prediction import UPDATE_RULES, Workload
from hybridnn.cost.prediction.predict import predict
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import LayerSeconds, layer_timer

WIDTHS = 4, 2600  # widths of layers, drawn evenly on a logarithmic scale; the network's last layer may be narrower

SAMPLES = 4, 640
LAYERS = 1, 5
MOST_MULTIPLY_ADDS = 2e9
"""Of one forward and backward pass; larger networks are as fast per multiply-add and take longer to time."""

MOST_STEP_MULTIPLY_ADDS = 2e8  # of a timed training step: in longer ones, updates, losses and Python are a small part

SIZE_CLASSES = tuple((2**power, 2 ** (power + 3)) for power in (6, 19, 12, 16, 9))
"""Sizes of arrays for element-wise work, in an order in which few samples cover the range."""

ROUNDS = 5, 40
PASS_SECONDS, ELEMENT_SECONDS = 0.08, 0.01
"""Time for the rounds of a network, and of element-wise work of one size, within `ROUNDS`."""

MICROBATCHES = (1, 2, 1, 4, 1, 8, 1, 16)
LEAST_ROWS = 4  # samples of a microbatch: products with one are others, of a matrix and a vector
LEAST_STEPS = 6


def draw_shape(
    generator: np.random.Generator, most: float = MOST_MULTIPLY_ADDS, least: int = 1, least_samples: int = 1
) -> tuple[list[int], int]:
    """Sizes of a network, at least `least`, and samples of a minibatch, of at most so many multiply-adds."""
    while True:
        layers = int(generator.integers(*LAYERS, endpoint=True))
        drawn = [_log_uniform(generator, *WIDTHS) for _ in range(layers)] + [_log_uniform(generator, 1, WIDTHS[1])]
        sizes = [max(size, least) for size in drawn]
        samples = max(_log_uniform(generator, *SAMPLES), least_samples)
        # of a forward and a backward pass
        if 3 * samples * sum(inputs * outputs for inputs, outputs in pairwise(sizes)) <= most:
            return sizes, samples


def _log_uniform(generator: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))


def _rounds(measure: Callable[[], Any], seconds: float) -> Iterator[Any]:
    """Results of repeated measurements, after a first one that does not count."""
    measure()
    least, most = ROUNDS
    start, done = perf_counter(), 0
    while done < least or (done < most and perf_counter() - start < seconds):
        yield measure()
        done += 1


# -- passes ----------------------------------------------------------------------------------------------------------


class PassSample(NamedTuple):
    """A layer that was timed in its network; the first one computes no input gradient."""

    outputs: int
    inputs: int
    samples: int
    first: bool
    seconds: LayerSeconds


class TimedNetwork(NamedTuple):
    """The layers of a network, and the seconds of all passes in each round."""

    layers: tuple[PassSample, ...]
    rounds: tuple[float, ...]


def measure_passes(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group
) -> list[TimedNetwork]:
    """Time the passes of random networks without activations until the budget is spent; collective."""
    networks: list[TimedNetwork] = []
    end = perf_counter() + budget_seconds
    while not networks or before(end, ranks):
        sizes, samples = draw_shape(generator)
        time_passes = layer_timer(MLP(sizes, "identity"), samples, dtype)
        before(end, ranks)
        rounds = list(_rounds(time_passes, PASS_SECONDS))
        medians = [LayerSeconds(*map(median, zip(*layer, strict=True))) for layer in zip(*rounds, strict=True)]
        layers = tuple(
            PassSample(outputs, inputs, samples, index == 0, seconds)
            for index, ((inputs, outputs), seconds) in enumerate(zip(pairwise(sizes), medians, strict=True))
        )
        networks.append(TimedNetwork(layers, tuple(sum(map(sum, seconds)) for seconds in rounds)))
    return networks


# -- element-wise work -----------------------------------------------------------------------------------------------


def measure_elements(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group
) -> dict[str, list[tuple[float, float]]]:
    """Time element-wise work on arrays of random sizes until the budget is spent, at least once in each size class.

    Returns elements and seconds of the samples of ``packing``, ``forward relu``, …
    """
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    end, count = perf_counter() + budget_seconds, 0
    while count < len(ELEMENT_KINDS) * len(SIZE_CLASSES) or before(end, ranks):
        kind = ELEMENT_KINDS[count % len(ELEMENT_KINDS)]
        elements = _log_uniform(generator, *SIZE_CLASSES[count // len(ELEMENT_KINDS) % len(SIZE_CLASSES)])
        if kind == "joining":
            elements = min(elements, MOST_JOINED_ELEMENTS)
        time_once = partial(Timer(_work(kind, elements, np.dtype(dtype), generator)).timeit, 1)
        found[kind].append((elements, median(_rounds(time_once, ELEMENT_SECONDS))))
        count += 1
    return dict(found)


def _normal(elements: int, dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    # Repeated, because drawing them all would take longer than what is timed.
    return np.resize(generator.standard_normal(min(elements, 4096), dtype=dtype.type), elements)


def _work(kind: str, elements: int, dtype: np.dtype[Any], generator: np.random.Generator) -> Callable[[], object]:
    source, out = _normal(elements, dtype, generator), np.empty(elements, dtype)
    kind, _, name = kind.partition(" ")
    if kind == "packing":
        return lambda: NUMPY.copy(source, out)
    if kind == "joining":
        rows = elements // ROW
        part, wide = source[: rows * ROW].reshape(rows, ROW), (rows, ROW * PARTS)
        # Other arrays than the last, as passes between the copies leave the caches.
        arrays = [np.zeros(wide, dtype) for _ in range(ceil(UNCACHED_BYTES / (prod(wide) * dtype.itemsize)))]
        parts = cycle([array[:, first : first + ROW] for first in range(0, ROW * PARTS, ROW) for array in arrays])
        return lambda: NUMPY.copy(part, next(parts))
    if kind == "forward":
        return lambda: ACTIVATIONS[name].apply(source, out)
    gradient, scratch = _normal(elements, dtype, generator), np.empty(elements, dtype)
    return lambda: ACTIVATIONS[name].gradient(source, gradient, out, scratch)


FUNCTIONS = tuple(name for name in ACTIVATIONS if name != "identity")
ELEMENT_KINDS = "packing", "joining", *(f"{kind} {name}" for kind in ("forward", "gradient") for name in FUNCTIONS)
"""Kinds of element-wise work that are measured."""

ROW, PARTS = 16, 8  # samples of a microbatch, and microbatches of a minibatch, when `Compute.row_seconds` is measured
UNCACHED_BYTES = 1 << 23
MOST_JOINED_ELEMENTS = 1 << 17  # of a part that is joined: all parts take eight times its memory


# -- training steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepCase:
    """A training whose steps are timed, with a key of `UPDATE_RULES`."""

    model: MLP
    batch_size: int
    layout: Layout
    dtype: str
    optimizer: str
    classification: bool

    @property
    def workload(self) -> Workload:
        """The training as it is predicted, with an epoch of one step."""
        samples, rule = self.batch_size, UPDATE_RULES[self.optimizer]
        return Workload(self.model, samples, samples, self.dtype, rule, classification=self.classification)

    @property
    def loaded_elements(self) -> int:
        """Elements of the samples and targets of a minibatch."""
        sizes = self.model.sizes
        return self.batch_size * (sizes[0] + (1 if self.classification else sizes[-1]))


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step, and of its kinds of computation: passes, ``loss`` and ``update``.

    They are means over some steps one after another, on the slowest rank; those of the kinds are means over the ranks.
    """

    seconds: float
    computing: Mapping[str, float]
    instructions: int
    steps: int = 1

    @property
    def overhead(self) -> float:
        """Seconds outside computations."""
        return self.seconds - sum(self.computing.values())


StepTimer = Callable[[StepCase], StepTime]  # times steps on this rank alone, or on all ranks where the layout has them

StepSample = tuple[StepCase, StepTime]


def measure_steps(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group, time_step: StepTimer
) -> list[StepSample]:
    """Time training steps of random networks until the budget is spent; collective.

    Updates and losses find the caches as a step leaves them, and Python around instructions and steps is part of it.
    """
    found: list[StepSample] = []
    end = perf_counter() + budget_seconds
    while len(found) < LEAST_STEPS or before(end, ranks):
        sizes, batch_size = draw_shape(generator, MOST_STEP_MULTIPLY_ADDS)
        number = len(found)
        microbatches = min(MICROBATCHES[number % len(MICROBATCHES)], batch_size // LEAST_ROWS)
        optimizer = tuple(UPDATE_RULES)[number % len(UPDATE_RULES)]
        method = "gpipe" if microbatches > 1 else "sequential"
        layout = Layout(((1, 1),), (len(sizes) - 1,), overlap=False, method=method, microbatches=microbatches)
        case = StepCase(MLP(sizes, "relu"), batch_size, layout, dtype, optimizer, number % 2 == 0)
        found.append((case, time_step(case)))
    return found


# -- fits --------------------------------------------------------------------------------------------------------------

PASSES = LayerSeconds._fields
CACHES = tuple(2.0**power for power in range(17, 26))
"""Candidates for the size of the cache, in bytes: 128 KiB to 32 MiB."""

HELD_OUT = 4  # one network in so many is held out of the fit

BUDGET_SHARES = {"passes": 0.5, "elements": 0.1, "steps": 0.4}

Cost = TypeVar("Cost", PassCost, ElementCost)

WEIGHTS = {"float32": 2, "float64": 1}  # most training is in float32, and so is most of the time
LEAST_SECONDS = 1e-7  # replaces times below the resolution of the clock


@dataclass(frozen=True)
class ComputeError:
    """Relative error of a fit on held-out samples of a kind of pass.

    The mean is weighted by seconds, as errors of a step are.
    """

    dtype: str
    busy_ranks: int
    what: str
    samples: int
    mean: float
    largest: float


def calibrate_compute(
    grid: ProcessGrid, dtypes: Sequence[str], budget_seconds: float, seed: int, time_step: StepTimer
) -> tuple[tuple[Compute, ...], list[ComputeError]]:
    """Measure computing in every precision, with one rank busy and with all ranks of the node.

    Collective over the grid; the result of rank 0 counts.
    """
    node = grid.node_group
    alone = Group(None, "alone", grid.recorder)
    found, errors = [], []
    for dtype in dtypes:
        for ranks in (alone, node) if node.size > 1 else (alone,):
            sleeping_barrier(grid.world)
            if ranks is node or node.rank == 0:
                budget = budget_seconds * WEIGHTS[dtype] / sum(map(WEIGHTS.__getitem__, dtypes)) / min(node.size, 2)
                compute, fit_errors = _calibrate(dtype, ranks, budget, seed, time_step)
                found.append(compute)
                errors += fit_errors
    sleeping_barrier(grid.world)
    return tuple(found), errors


def _calibrate(
    dtype: str, ranks: Group, budget: float, seed: int, time_step: StepTimer
) -> tuple[Compute, list[ComputeError]]:
    generator = np.random.default_rng([seed, ranks.size])
    networks = measure_passes(dtype, budget * BUDGET_SHARES["passes"], generator, ranks)
    elements = measure_elements(dtype, budget * BUDGET_SHARES["elements"], generator, ranks)
    steps = measure_steps(dtype, budget * BUDGET_SHARES["steps"], generator, ranks, time_step)
    itemsize = np.dtype(dtype).itemsize
    held_out = [layer for network in networks[HELD_OUT::HELD_OUT] for layer in network.layers]
    fitted = [
        layer for number, network in enumerate(networks) if number % HELD_OUT or number == 0 for layer in network.layers
    ]

    def fits_of(cache: float) -> dict[str, LinearFit]:
        return {kind: _fit_pass(fitted, kind, cache) for kind in PASSES}

    def misfit(cache_bytes: float) -> float:
        return sum(fit.mean_relative_error for fit in fits_of(cache_bytes / itemsize).values())

    cache_bytes = min(CACHES, key=misfit)
    cache = cache_bytes / itemsize
    fits = fits_of(cache)
    pass_costs: dict[str, Any] = {
        kind: PassCost(**dict(zip(PassCost.model_fields, fit.coefficients, strict=True))) for kind, fit in fits.items()
    }
    element_costs = {kind: fit_element(samples, cache) for kind, samples in elements.items()}
    compute = Compute(
        dtype="float64" if dtype == "float64" else "float32",
        busy_ranks=ranks.size,
        cache_bytes=cache_bytes,
        activations={
            name: ActivationCost(forward=element_costs[f"forward {name}"], gradient=element_costs[f"gradient {name}"])
            for name in FUNCTIONS
        },
        packing=element_costs["packing"],
        row_seconds=ROW * max(element_costs["joining"].number_seconds - element_costs["packing"].number_seconds, 0.0),
        noise=fit_noise([network.rounds for network in networks]),
        **pass_costs,
        **fit_steps(steps, cache),
    )
    errors = [_error(compute, kind, fits[kind], held_out, cache) for kind in PASSES if held_out]
    return in_steps(compute, steps), errors


def _pass_features(samples: Sequence[PassSample], cache: float) -> NDArray[np.float64]:
    """Features of the coefficients of `PassCost`, in its order; `cache` is in elements."""
    rows = []
    for sample in samples:
        outputs, inputs, count = sample.outputs, sample.inputs, sample.samples
        weights = outputs * inputs
        uncached = weights if weights >= cache else 0
        rows.append((1, count * outputs, count * inputs, weights, uncached, weights * count))
    return np.array(rows, np.float64)


def _of_kind(samples: Sequence[PassSample], kind: str) -> tuple[list[PassSample], NDArray[np.float64]]:
    """The samples that have a pass of that kind, with its seconds."""
    having = [sample for sample in samples if kind != "input_gradient" or not sample.first]
    return having, np.array([getattr(sample.seconds, kind) for sample in having])


def _fit_pass(samples: Sequence[PassSample], kind: str, cache: float) -> LinearFit:
    having, seconds = _of_kind(samples, kind)
    if not having:  # the budget was so short that one network of one layer was timed
        having, seconds = _of_kind(samples, "weight_gradient")
    return fit_linear(_pass_features(having, cache), seconds)


def _error(compute: Compute, kind: str, fit: LinearFit, held_out: Sequence[PassSample], cache: float) -> ComputeError:
    having, seconds = _of_kind(held_out, kind)
    if not having:
        return ComputeError(compute.dtype, compute.busy_ranks, kind, 0, 0.0, 0.0)
    errors = np.abs(fit.seconds(_pass_features(having, cache)) - seconds)
    mean, largest = float(errors.sum() / seconds.sum()), float((errors / seconds).max())
    return ComputeError(compute.dtype, compute.busy_ranks, kind.replace("_", " "), len(having), mean, largest)


# -- element-wise work and training steps ----------------------------------------------------------------------------


def fit_element(samples: Sequence[tuple[float, float]], cache: float, arrays: int = 1) -> ElementCost:
    """Cost of element-wise work on a number of arrays, from pairs of elements and seconds; `cache` is in elements."""
    rows = [(1, n, n if n * arrays >= cache else 0) for n, _ in samples]
    call, element, uncached = fit_linear(rows, [seconds for _, seconds in samples]).coefficients
    return ElementCost(call_seconds=call, number_seconds=element, uncached_number_seconds=uncached)


def fit_steps(samples: Sequence[StepSample], cache: float) -> dict[str, Any]:
    """Fields of `Compute` from training steps: updates, losses, loading, and Python."""
    updates = {
        name: [(case.model.parameters, time.computing["update"]) for case, time in samples if case.optimizer == name]
        for name in UPDATE_RULES
    }
    losses: dict[str, list[tuple[float, float]]] = {"mse": [], "cross_entropy": []}
    for case, time in samples:  # the loss is called once for each microbatch
        elements, seconds = case.batch_size * case.model.sizes[-1], time.computing["loss"]
        per_call = elements / case.layout.microbatches, seconds / case.layout.microbatches
        losses["cross_entropy" if case.classification else "mse"].append(per_call)
    rows = [(1, time.instructions, case.loaded_elements) for case, time in samples]
    overhead = [max(time.overhead, LEAST_SECONDS) for _, time in samples]
    step, instruction, element = fit_linear(rows, overhead).coefficients
    return {
        "updates": {
            name: fit_element(pairs, cache, 2 + len(UPDATE_RULES[name].slot_names)) for name, pairs in updates.items()
        },
        "losses": {name: fit_element(pairs, cache) for name, pairs in losses.items()},
        "load": ElementCost(number_seconds=element),
        "instruction_seconds": instruction,
        "step_seconds": step,
    }


def in_steps(compute: Compute, samples: Sequence[StepSample], machine: Machine | None = None) -> Compute:
    """The costs of passes, activations and updates in training steps, from those of passes one after another.

    In a step more arrays share the caches, and code runs between the passes. A factor and seconds per pass of a layer
    are fitted, for forward and for backward passes, which the gradients of inputs and of weights share; a factor and
    seconds per call for updates. `machine` sends the messages of the steps; those of one rank need none.
    """
    predicted = [_computing(compute, case, machine) for case, _ in samples]
    found = {}
    for kind, per_layer in (("forward", 1), ("backward", 2), ("update", 0)):
        rows = []
        for seconds, (case, _) in zip(predicted, samples, strict=True):
            layers = case.layout.microbatches * len(case.model.layers) / len(case.layout.stages)
            rows.append((seconds[kind], per_layer * layers or 1.0))
        measured = [max(_kinds(time.computing)[kind], LEAST_SECONDS) for _, time in samples]
        found[kind] = fit_linear(rows, measured).coefficients
    kinds = {"forward": "forward", "input_gradient": "backward", "weight_gradient": "backward"}
    passes = {name: _in_step(getattr(compute, name), *found[kind]) for name, kind in kinds.items()}
    activations = {
        name: ActivationCost(
            forward=_in_step(cost.forward, found["forward"][0]), gradient=_in_step(cost.gradient, found["backward"][0])
        )
        for name, cost in compute.activations.items()
    }
    updates = {name: _in_step(cost, *found["update"]) for name, cost in compute.updates.items()}
    return compute.model_copy(update={**passes, "activations": activations, "updates": updates})


def _in_step(cost: Cost, factor: float, call_seconds: float = 0.0) -> Cost:
    scaled = {name: value * factor for name, value in cost}
    return cost.model_copy(update=scaled | {"call_seconds": scaled["call_seconds"] + call_seconds})


def _computing(compute: Compute, case: StepCase, machine: Machine | None) -> dict[str, float]:
    """Predicted seconds of passes and update in a step, the mean over the ranks."""
    if machine is None:
        link = NetworkLink(segments=(Segment(alpha_seconds=0.0, beta_seconds_per_byte=0.0),))
        machine = Machine(
            name="one rank", ranks_per_node=1, memory_bytes_per_rank=1, inside_node=link, compute=(compute,)
        )
    # as what is measured is a median
    without_noise = machine.model_copy(update={"compute": (compute.model_copy(update={"noise": 0.0}),)})
    return _kinds(predict(case.workload, case.layout, without_noise).instructions)


def _kinds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of passes and updates; both halves of a backward pass count as one."""
    backward = sum(seconds.get(name, 0.0) for name in ("backward", "input gradient", "weight gradient"))
    return {"forward": seconds["forward"], "backward": backward, "update": seconds.get("update", 0.0)}
