"""Errors of predicted times, on layouts that are not part of any fit.

``mpirun -n 2 python -m benchmarks.cost_check``. Without ``--machine`` the machine is calibrated first. The speed of one
product, before and after, shows whether the machine stayed as it was.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.cost.calibration.calibrate import Calibration, calibrate
from hybridnn.cost.calibration.fit import LARGE_BYTES
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.cost.plan import layout_advice
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import predict
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
PRODUCT_SECONDS = 2.0
APART = 1.15
"""Factor between measured times from which on the order of two layouts should be predicted correctly."""


@dataclass(frozen=True)
class Case:
    """A layout: its name, the axes of its grid, and the settings of the trainer."""

    name: str
    axes: dict[str, int]
    settings: dict[str, Any]


@dataclass
class Result:
    """Seconds per step of a layout, predicted and measured."""

    network: str
    batch_size: int
    layout: str
    predicted_seconds_per_step: float
    advice: str  # what `hybridnn train` says about a faster layout
    measured_seconds_per_step: float = 0.0

    @property
    def error(self) -> float:
        """Error relative to the measured time."""
        return self.predicted_seconds_per_step / self.measured_seconds_per_step - 1


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
    predicted, advice = epoch.seconds_per_epoch / steps, layout_advice(step, one, machine)

    def measure() -> float:
        generator = np.random.default_rng(0)
        x = generator.standard_normal((steps * batch_size, model.sizes[0]), np.float32)
        y = generator.standard_normal((steps * batch_size, model.sizes[-1]), np.float32)
        return batch_size / trainer.fit(x, y, epochs=1).epochs[-1].samples_per_second

    return Result("-".join(map(str, model.sizes)), batch_size, case.name, predicted, advice), measure


def check(machine: Machine) -> list[Result]:
    """Predict and measure all layouts of all networks, alternately, so that disturbances affect all of them."""
    first = import_mpi().COMM_WORLD.Get_rank() == 0
    # A single process is measured on rank 0, while the other rank waits for it in the next layout.
    runs = [
        prepare(machine, MLP(list(sizes), "relu"), batch_size, case)
        for sizes, batch_size in NETWORKS
        for case in cases()
        if case.axes or first
    ]
    _, *rounds = [[measure() for _, measure in runs] for _ in range(1 + ROUNDS)]  # the first is a warm-up
    for (result, _), seconds in zip(runs, zip(*rounds, strict=True), strict=True):
        result.measured_seconds_per_step = median(seconds)
    return [result for result, _ in runs]


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


def product_speed() -> float:
    """GFLOP/s of a rank in products of float32 matrices, which all ranks compute at once."""
    matrix, out = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
    import_mpi().COMM_WORLD.Barrier()
    began, products, seconds = perf_counter(), 0, 0.0
    while seconds < PRODUCT_SECONDS:
        np.matmul(matrix, matrix, out=out)
        products, seconds = products + 1, perf_counter() - began
    return 2 * 512**3 * products / seconds / 1e9


def print_results(results: list[Result]) -> dict[str, Any]:
    """Print a table of all layouts and the summary; return the summary."""
    table = Table("network", "batch", "layout", "predicted ms", "measured ms", "error", title="Seconds per step")
    for result in results:
        times = (result.predicted_seconds_per_step * 1e3, result.measured_seconds_per_step * 1e3)
        table.add_row(
            result.network, str(result.batch_size), result.layout, *(f"{t:.3f}" for t in times), f"{result.error:+.0%}"
        )
    CONSOLE.print(table)
    apart, right = order_rate(results)
    error = mean(abs(result.error) for result in results)
    CONSOLE.print(f"mean error {error:.1%} over {len(results)} layouts")
    CONSOLE.print(f"in the right order: {right} of {apart} pairs that differ by more than 15 % ({right / apart:.0%})")
    lost, advice = losses(results), advice_errors(results)
    CONSOLE.print(f"the first choices of the networks lose {', '.join(f'{loss:.0%}' for loss in lost)}")
    within = sum(off <= admitted for off, admitted in advice)
    CONSOLE.print(f"advice on {len(advice)} layouts: {within} ratios are within the factor that it states")
    return {
        "mean_error": error,
        "layouts": len(results),
        "pairs": apart,
        "pairs_in_order": right,
        "most_lost": max(lost),
        "advice": len(advice),
        "advice_within": within,
    }


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where to write the calibrated machine")
    arguments = parser.parse_args()
    grid = ProcessGrid()
    limit_blas_threads(grid.node_group)
    collectives: list[dict[str, Any]] = []
    speeds = [product_speed()]
    if arguments.machine:
        machine = read_machine(arguments.machine)
    else:
        found = calibrate(grid, arguments.seconds, arguments.seed, TrainingTimer())
        machine = found.machine
        if grid.rank == 0:
            collectives = print_collectives(found)
            if arguments.keep:
                write_machine(machine, arguments.keep)
    speeds.append(product_speed())
    results = check(machine)
    speeds.append(product_speed())
    if grid.rank == 0:
        summary = {**print_results(results), "gflops": speeds, "doubt": machine.doubt}
        rates = ", ".join(f"{speed:.0f}" for speed in speeds)
        CONSOLE.print(f"GFLOP/s of a product before and after calibrating, and at the end: {rates}")
        CONSOLE.print(machine.doubt)  # with which there is no advice
        out = RESULTS / f"{date.today()}-cost-check.json"
        layouts = [{**asdict(result), "error": result.error} for result in results]
        figures = {"machine": machine.about, "summary": summary, "collectives": collectives, "layouts": layouts}
        out.write_text(json.dumps(figures, indent=1) + "\n")
        CONSOLE.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    main()
