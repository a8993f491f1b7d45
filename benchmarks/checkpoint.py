"""Speed of writing checkpoints compared with a plain parallel write, and the cost of background writing per epoch.

``mpirun -n 2 python -m benchmarks.checkpoint [FOLDER]`` writes to FOLDER, by default the working directory, and prints
megabytes per second, and the seconds of epochs with and without a checkpoint. Run it on an idle machine, because
digests need cores that a plain write does not use.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.timing import seconds_of
from hybridnn import MLP, Adam, Callback, ProcessGrid, Trainer
from hybridnn.checkpoints.writing import CheckpointWriter, checkpoint_writer
from hybridnn.training.progress import Progress
from hybridnn.training.records import StepRecord
from hybridnn.training.trained_network import TrainedNetwork

WIDTHS = (1024,) * 12
EPOCH_WIDTHS = (1024,) * 6
EPOCH_SAMPLES = 8192
RUNS = 11
SETTLING_SECONDS = 0.2
PLAIN = "plain, a file for each rank"
COMM = MPI.COMM_WORLD

LAYOUTS: dict[str, tuple[dict[str, int], str]] = {
    "batch": ({}, "columns"),
    "pipeline": ({"pipeline": COMM.size}, "columns"),
    "model, columns": ({"model": COMM.size}, "columns"),
    "model, alternating": ({"model": COMM.size}, "alternating"),
}


def own_file(folder: Path, data: np.ndarray[Any, Any]) -> None:
    """Write this rank's part of the bytes to a separate file."""
    with open(folder / f"{COMM.rank}", "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def shared_file(folder: Path, data: np.ndarray[Any, Any]) -> None:
    """Write this rank's part of the bytes to one file by collective MPI-IO."""
    file = MPI.File.Open(COMM, str(folder / "shared"), MPI.MODE_CREATE | MPI.MODE_WRONLY)
    file.Write_at_all(COMM.rank * data.nbytes, data)
    file.Sync()
    file.Close()


def make_writer(
    folder: Path, axes: dict[str, int], split: str, widths: tuple[int, ...] = WIDTHS
) -> tuple[Trainer, CheckpointWriter]:
    """Return a trainer with Adam's two slots, and a writer of its checkpoints."""
    grid = ProcessGrid(COMM, **axes)
    trainer = Trainer(MLP(widths), Adam(), grid=grid, model_split=split, batch_size=256, log_every=1)
    return trainer, checkpoint_writer(trainer, folder, data="none", keep=RUNS + 1)


class Advancing(Callback):
    """Advances the checkpoint that is being written, after logged steps."""

    def __init__(self, writer: CheckpointWriter) -> None:
        self._writer = writer

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Advance without waiting."""
        self._writer.is_done()


def progress_at(step: int) -> Progress:
    """Return a progress of the training with this step."""
    return Progress(step=step, epoch=1, minibatches=0, loss_sum=0.0, samples=0)


def print_speeds(folder: Path) -> None:
    """Time all variants of writing the same bytes, alternately."""
    total = 3 * 4 * MLP(WIDTHS).parameters
    data = np.random.default_rng(COMM.rank).random(total // COMM.size // 4, np.float32)
    ways: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: own_file(folder, data),
        "plain, MPI-IO collective": lambda: shared_file(folder, data),
    }
    steps = count(1)
    for name, (axes, split) in LAYOUTS.items():
        writer = make_writer(folder / name, axes, split)[1]
        ways[name] = lambda writer=writer: writer.write(progress_at(next(steps)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    beside: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():  # each after a plain write, because the speed of the disk varies
            beside[name].append(undisturbed(folder, ways[PLAIN]))
            seconds[name].append(undisturbed(folder, way))
    if COMM.rank == 0:
        print(f"{total / 1e6:.0f} MB on {COMM.size} ranks, in {folder}")
        for name, times in seconds.items():
            ratios = sorted(theirs / ours for theirs, ours in zip(beside[name], times, strict=True))
            speed = f"{total / 1e6 / median(times):6.0f} MB/s, best {total / 1e6 / min(times):6.0f} MB/s"
            print(f"{name:30} {speed}; {median(ratios):4.0%} of plain ({ratios[0]:.0%} to {ratios[-1]:.0%})")


def undisturbed(folder: Path, way: Callable[[], Any]) -> float:
    """Seconds of one write on all ranks, after earlier files have been removed and all data written."""
    if COMM.rank == 0:
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
            else:
                for checkpoint in path.iterdir():
                    shutil.rmtree(checkpoint)
        os.sync()
        sleep(SETTLING_SECONDS)
    COMM.Barrier()
    return seconds_of(lambda: (way(), COMM.Barrier()))


def print_epochs(folder: Path) -> None:
    """Time epochs with and without a checkpoint in the background, alternately."""
    trainer, writer = make_writer(folder / "epochs", {}, "columns", EPOCH_WIDTHS)
    x = np.random.default_rng(0).standard_normal((EPOCH_SAMPLES, EPOCH_WIDTHS[0]), np.float32)
    y = np.random.default_rng(1).standard_normal((EPOCH_SAMPLES, EPOCH_WIDTHS[-1]), np.float32)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    begins: list[float] = []

    def epoch(writes: bool) -> None:
        if writes:
            begins.append(seconds_of(lambda: writer.begin(progress_at(trainer.step))))
        trainer.fit(x, y, epochs=1, callbacks=[Advancing(writer)])

    epoch(False)
    for _ in range(RUNS):
        for writes in seconds:
            COMM.Barrier()
            seconds[writes].append(seconds_of(lambda writes=writes: epoch(writes)))
            if writer.busy:
                writer.finish()
    if COMM.rank == 0:
        without, beside = median(seconds[False]), median(seconds[True])
        ratio = median(b / a for a, b in zip(seconds[False], seconds[True], strict=True))
        print(f"epoch {without:.2f} s, {beside:.2f} s with a checkpoint beside it ({ratio - 1:+.1%}); ", end="")
        print(f"begin() {1e3 * median(begins):.0f} ms")


def main() -> None:
    """Print both comparisons."""
    where = sys.argv[1] if len(sys.argv) > 1 else "."
    name = COMM.bcast(tempfile.mkdtemp(prefix=".checkpoint-benchmark-", dir=where) if COMM.rank == 0 else None)
    try:
        print_speeds(Path(name))
        print_epochs(Path(name))
    finally:
        COMM.Barrier()
        if COMM.rank == 0:
            shutil.rmtree(name)


if __name__ == "__main__":
    main()
