"""Errors of predicted times, on layouts that are not part of any fit.

``mpirun -n 2 python -m benchmarks.cost_check``. Without ``--machine`` the machine is calibrated first.

Products, copies and messages are timed around the calibration, and in every round before and after each network. A
layout is measured without drift by dividing each of its times by how much slower these were than around the
calibration, weighted by what the prediction computes, copies and sends. A host that changes its speed is thereby told
from a model that is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.cost.calibration.calibrate import Calibration, calibrate
from hybridnn.cost.calibration.communication import sleeping_barrier
from hybridnn.cost.calibration.fit import LARGE_BYTES
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.cost.plan import layout_advice
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import Prediction, predict
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.step_timer import TrainingTimer

RESULTS = Path(__file__).parent / "results"
CONSOLE = Console(width=110, highlight=False)

NETWORKS = (
    ((16, 64, 64, 64, 2), 32),
    ((64, *[128] * 6, 10), 256),
    ((100, *[300] * 4, 5), 96),
    ((256, *[512] * 6, 10), 512),
    ((16, *[1024] * 4, 2), 100),
    ((512, *[2048] * 3, 10), 64),
)
"""Sizes of the layers, and samples of a minibatch."""

ROUNDS = 5
ROUND_SECONDS = 0.3
LEAST_STEPS = 8  # of a round
SPEEDS = "cost_check_speeds"  # key of a kept machine file with the `Speeds` around its calibration
APART = 1.15
"""Factor between measured times from which on the order of two layouts should be predicted correctly."""


# -- speed of the machine ----------------------------------------------------------------------------------------------

PRODUCT_WIDTH, COPIED_BYTES, MESSAGE_BYTES = 512, 1 << 24, 1 << 16
PRODUCTS, COPIES, MESSAGES = 25, 25, 1000
"""Of one measurement, which takes about a tenth of a second for each of the three."""


class Speeds(NamedTuple):
    """Median seconds of a product, a copy, and a message there and back, on the slowest rank while all do the same."""

    product: float
    copy: float
    message: float

    def slowdown(self, reference: Speeds, weights: Speeds) -> float:
        """Time relative to that at the speeds `reference`, of work in which the three take `weights` seconds then."""
        now = sum(weight * own / before for weight, own, before in zip(weights, self, reference, strict=True))
        return now / sum(weights)


def measure_speeds(world: Group) -> Speeds:
    """Time products of matrices, copies of arrays that fill no cache, and messages to and from the other rank."""
    matrix, out = np.ones((PRODUCT_WIDTH, PRODUCT_WIDTH), np.float32), np.empty((PRODUCT_WIDTH,) * 2, np.float32)
    source, target, array = (
        np.ones(COPIED_BYTES, np.int8),
        np.zeros(COPIED_BYTES, np.int8),
        np.zeros(MESSAGE_BYTES, np.int8),
    )

    def exchange() -> None:
        if world.rank == 0:
            world.isend(array, 1, 1).wait()
            world.ireceive(array, 1, 1).wait()
        else:
            world.ireceive(array, 0, 1).wait()
            world.isend(array, 0, 1).wait()

    actions: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: np.matmul(matrix, matrix, out=out), PRODUCTS),
        (lambda: np.copyto(target, source), COPIES),
        (exchange, MESSAGES),
    )
    seconds = np.zeros(len(actions))
    for number, (action, times) in enumerate(actions):
        world.barrier()
        taken = []
        for _ in range(times):
            began = perf_counter()
            action()
            taken.append(perf_counter() - began)
        seconds[number] = median(taken)
    world.allreduce(seconds, "max")
    return Speeds(*seconds.tolist())


def mean_speeds(speeds: Sequence[Speeds]) -> Speeds:
    """The mean of several measurements."""
    return Speeds(*map(mean, zip(*speeds, strict=True)))


# -- layouts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A layout: its name, the axes of its grid, and the settings of the trainer."""

    name: str
    axes: dict[str, int]
    settings: dict[str, Any]

    @property
    def kind(self) -> str:
        """Kind of layout, for mean errors."""
        if not self.axes:
            return "one rank"
        if "pipeline" not in self.axes:
            return "model" if "model" in self.axes else "batch"
        return "exact pipeline" if METHODS[self.name].exact else "asynchronous pipeline"


@dataclass
class Result:
    """Seconds per step of a layout, predicted and measured."""

    network: str
    batch_size: int
    layout: str
    kind: str
    predicted_seconds_per_step: float
    weights: Speeds  # predicted seconds of a step in products and Python, in updates, and in communication
    advice: str  # what `hybridnn train` says about a faster layout
    rounds: list[float] = field(default_factory=list)  # measured seconds per step
    slowdowns: list[float] = field(default_factory=list)  # of the machine in these rounds

    @property
    def measured_seconds_per_step(self) -> float:
        """Median of the rounds."""
        return median(self.rounds)

    @property
    def error(self) -> float:
        """Error relative to the measured time."""
        return self.predicted_seconds_per_step / self.measured_seconds_per_step - 1

    def without_drift(self) -> Result:
        """The result as if the machine had always had the speed of the calibration."""
        rounds = [seconds / slower for seconds, slower in zip(self.rounds, self.slowdowns, strict=True)]
        return replace(self, rounds=rounds, slowdowns=[1.0] * len(rounds))


def work_of(step: Prediction) -> Speeds:
    """Seconds of a step by what they are spent on, for `Speeds.slowdown`."""
    update = step.instructions.get("update", 0.0)
    rest = step.breakdown.computing - update + step.breakdown.overhead
    return Speeds(rest, update, step.breakdown.communication)


def cases() -> Iterator[Case]:
    """All layouts of two ranks."""
    yield Case("serial", {}, {})
    yield Case("batch, shared replicas", {"batch": 2}, {})
    for overlap in (False, True):
        words = ", overlap" if overlap else ""
        yield Case(f"batch{words}", {"batch": 2}, {"overlap": overlap, "shared_replicas": False})
        for split in ("columns", "alternating"):
            yield Case(f"model, {split}{words}", {"batch": 1, "model": 2}, {"overlap": overlap, "model_split": split})
    for name, method in METHODS.items():
        settings = {"method": name, "microbatches": 4 if method.cuts_minibatches else None}
        yield Case(name, {"pipeline": 2, "batch": 1}, settings)


def prepare(machine: Machine, model: MLP, batch_size: int, case: Case) -> tuple[Result, Callable[[], float]]:
    """Predict a layout; the result to fill in, and a function that returns mean seconds of a step over a round."""
    grid = ProcessGrid(None if case.axes else import_mpi().COMM_SELF, **case.axes)
    quiet = {"log_every": 10**6, "evaluate_every": 10**6}
    trainer = Trainer(model, SGD(lr=1e-6), grid=grid, batch_size=batch_size, **quiet, **case.settings)
    one = Workload(model, batch_size, batch_size, classification=False)
    step = predict(one, trainer.layout, machine)
    steps = max(LEAST_STEPS, round(ROUND_SECONDS / step.seconds_per_step))
    epoch = predict(Workload(model, steps * batch_size, batch_size, classification=False), trainer.layout, machine)

    def measure() -> float:
        generator = np.random.default_rng(0)
        x = generator.standard_normal((steps * batch_size, model.sizes[0]), np.float32)
        y = generator.standard_normal((steps * batch_size, model.sizes[-1]), np.float32)
        return batch_size / trainer.fit(x, y, epochs=1).epochs[-1].samples_per_second

    network, predicted = "-".join(map(str, model.sizes)), epoch.seconds_per_epoch / steps
    advice = layout_advice(step, one, machine)
    return Result(network, batch_size, case.name, case.kind, predicted, work_of(step), advice), measure


def check(machine: Machine, world: Group, reference: Speeds, rounds: int) -> list[Result]:
    """Predict and measure all layouts of all networks, alternately, so that disturbances affect all of them."""
    networks = []
    for sizes, batch_size in NETWORKS:
        model = MLP(list(sizes), "relu")
        # A single process is measured on rank 0, while the other rank sleeps.
        runs = [prepare(machine, model, batch_size, case) for case in cases() if case.axes or world.rank == 0]
        networks.append(runs)
    for number in range(1 + rounds):
        before = measure_speeds(world)
        for runs in networks:
            alone = int(world.rank == 0)
            seconds = [measure() for _, measure in runs[:alone]]
            sleeping_barrier(world)
            seconds += [measure() for _, measure in runs[alone:]]
            after = measure_speeds(world)
            around, before = mean_speeds((before, after)), after
            if number == 0:  # a warm-up
                continue
            for (result, _), taken in zip(runs, seconds, strict=True):
                result.rounds.append(taken)
                result.slowdowns.append(around.slowdown(reference, result.weights))
    return [result for runs in networks for result, _ in runs]


# -- errors ------------------------------------------------------------------------------------------------------------


def by_network(results: Sequence[Result]) -> list[list[Result]]:
    """The layouts of each network."""
    networks: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        networks.setdefault((result.network, result.batch_size), []).append(result)
    return list(networks.values())


def order_rate(results: Sequence[Result]) -> tuple[int, int]:
    """Number of pairs of layouts of one network with different times, and of those predicted in the right order."""
    apart = right = 0
    for one, other in (pair for layouts in by_network(results) for pair in combinations(layouts, 2)):
        fast, slow = sorted((one, other), key=lambda result: result.measured_seconds_per_step)
        if slow.measured_seconds_per_step > APART * fast.measured_seconds_per_step:
            apart += 1
            right += slow.predicted_seconds_per_step > fast.predicted_seconds_per_step
    return apart, right


def losses(results: Sequence[Result]) -> list[float]:
    """What the first choice of the predictions loses in each network: its time over that of the fastest, less 1."""
    found = []
    for layouts in by_network(results):
        choice = min(layouts, key=lambda result: result.predicted_seconds_per_step)
        found.append(choice.measured_seconds_per_step / min(one.measured_seconds_per_step for one in layouts) - 1)
    return found


def advice_errors(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Of each layout with advice, the factor by which its stated ratio to one rank is off, and the factor it admits."""
    found = []
    for layouts in by_network(results):
        (serial,) = (result for result in layouts if result.layout == "serial")
        for result in layouts:
            if stated := re.search(r"within a factor of ([\d.]+)", result.advice):
                off = (1 + serial.error) / (1 + result.error)
                found.append((max(off, 1 / off), float(stated[1])))
    return found


def signed_errors(results: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """Signed mean and mean size of the errors, of each network, each kind of layout, and all results."""
    groups: dict[str, list[float]] = {}
    for result in results:
        for name in (f"{result.network}, {result.batch_size}", result.kind, "all"):
            groups.setdefault(name, []).append(result.error)
    return {name: (mean(errors), mean(map(abs, errors))) for name, errors in groups.items()}


def summary_of(results: Sequence[Result]) -> dict[str, Any]:
    """Figures of all results together."""
    apart, right = order_rate(results)
    advice = advice_errors(results)
    signed = signed_errors(results)
    return {
        "signed_mean_error": signed["all"][0],
        "mean_error": signed["all"][1],
        "layouts": len(results),
        "pairs": apart,
        "pairs_in_order": right,
        "losses": losses(results),
        "advice": len(advice),
        "advice_within": sum(off <= admitted for off, admitted in advice),
        "errors": signed,
    }


def print_results(results: Sequence[Result]) -> dict[str, Any]:
    """Print a table of all layouts, one of their mean errors, and the figures of all; return the figures."""
    steady = [result.without_drift() for result in results]
    table = Table("network", "batch", "layout", "predicted ms", "measured ms", "error", "without drift")
    for result, corrected in zip(results, steady, strict=True):
        times = (result.predicted_seconds_per_step * 1e3, result.measured_seconds_per_step * 1e3)
        errors = f"{result.error:+.0%}", f"{corrected.error:+.0%}"
        table.add_row(result.network, str(result.batch_size), result.layout, *(f"{t:.3f}" for t in times), *errors)
    CONSOLE.print(table)
    summaries = {"as measured": summary_of(results), "without drift": summary_of(steady)}
    means = Table(
        "network, batch; kind of layout", "signed", "mean", "signed", "mean", title="Mean errors, and without drift"
    )
    for name in summaries["as measured"]["errors"]:
        pairs = [summary["errors"][name] for summary in summaries.values()]
        means.add_row(name, *(text for signed, size in pairs for text in (f"{signed:+.1%}", f"{size:.1%}")))
    CONSOLE.print(means)
    for words, found in summaries.items():
        apart, right = found["pairs"], found["pairs_in_order"]
        CONSOLE.print(
            f"{words}: signed mean {found['signed_mean_error']:+.1%}, mean {found['mean_error']:.1%} "
            f"over {len(results)} layouts"
        )
        CONSOLE.print(
            f"  in the right order: {right} of {apart} pairs that differ by more than 15 % ({right / apart:.0%})"
        )
        lost = ", ".join(f"{loss:.0%}" for loss in found["losses"])
        CONSOLE.print(f"  the first choices of the networks lose {lost}")
        advice, within = found["advice"], found["advice_within"]
        CONSOLE.print(f"  advice on {advice} layouts: {within} ratios are within the factor that it states")
    return summaries


def print_collectives(found: Calibration) -> list[dict[str, Any]]:
    """Print and return the errors of the fits on held-out sizes."""
    table = Table("operation", "ranks", "sizes", "mean error", "largest", title="Messages of 64 KiB and more, held out")
    rows = []
    for fit in found.fits:
        error = fit.held_out_error(LARGE_BYTES)
        if error is not None:
            table.add_row(fit.operation, str(fit.cost.ranks), str(error.sizes), f"{error.mean:.1%}", f"{error.max:.1%}")
            rows.append({"operation": fit.operation, "ranks": fit.cost.ranks, **asdict(error)})
    CONSOLE.print(table)
    return rows


def main() -> None:
    """Calibrate if necessary, check the predictions, print the results and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", help="a machine file; without one this machine is calibrated")
    parser.add_argument("--seconds", type=float, default=240.0, help="for calibrating")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in which every layout is measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where to write the calibrated machine")
    arguments = parser.parse_args()
    grid = ProcessGrid()
    limit_blas_threads(grid.node_group)
    collectives: list[dict[str, Any]] = []
    speeds = [measure_speeds(grid.world)]
    if arguments.machine:
        machine = read_machine(arguments.machine)
        if kept := machine.about.get(SPEEDS):
            speeds = [Speeds(*map(float, kept.split()))]
    else:
        found = calibrate(grid, arguments.seconds, arguments.seed, TrainingTimer())
        machine = found.machine
        if grid.rank == 0:
            collectives = print_collectives(found)
        speeds.append(measure_speeds(grid.world))
        if grid.rank == 0 and arguments.keep:
            kept = " ".join(map(str, mean_speeds(speeds)))
            write_machine(machine.model_copy(update={"about": {**machine.about, SPEEDS: kept}}), arguments.keep)
    results = check(machine, grid.world, mean_speeds(speeds), arguments.rounds)
    speeds.append(measure_speeds(grid.world))
    if grid.rank == 0:
        summary = {**print_results(results), "speeds": [found._asdict() for found in speeds], "doubt": machine.doubt}
        for name, times in zip(Speeds._fields, zip(*speeds, strict=True), strict=True):
            micro = ", ".join(f"{seconds * 1e6:.1f}" for seconds in times)
            CONSOLE.print(f"µs of a {name} around the calibration, and at the end: {micro}")
        CONSOLE.print(machine.doubt)  # with which there is no advice
        out = RESULTS / f"{date.today()}-cost-check.json"
        layouts = [
            {**asdict(result), "measured_seconds_per_step": result.measured_seconds_per_step, "error": result.error}
            for result in results
        ]
        figures = {"machine": machine.about, "summary": summary, "collectives": collectives, "layouts": layouts}
        out.write_text(json.dumps(figures, indent=1) + "\n")
        CONSOLE.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    main()
