"""What the ranks that are left of a run hold, when nobody has written it yet.

Batch replicas hold everything. After a loss some stand one step later than others; one of the latest writes a
checkpoint, and adds to the history what the lost rank was to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.mpi import import_mpi
from hybridnn.training.checkpoints.folder import checkpoint_folders, step_of
from hybridnn.training.checkpoints.manifest import Progress
from hybridnn.training.history import EpochRecord, History, MeasuredStep, StepRecord
from hybridnn.training.history_file import HISTORY, history_lines
from hybridnn.training.json_text import to_json
from hybridnn.training.run_folder import CHECKPOINTS, KINDS
from hybridnn.training.underway import Underway
from hybridnn.whole_files import write_whole

__all__ = ["complete_history", "rescue"]


def rescue(grid: ProcessGrid, run: Underway, folder: Path) -> None:
    """Write a checkpoint of what a rank holds, if that is more than the newest one has; collective.

    Parameters
    ----------
    grid : ProcessGrid
        The ranks that are left.
    run : Underway
        That lost a rank, as this rank knows it.
    folder : Path
        Of the run.

    Raises
    ------
    EnvironmentProblem
        On every rank: it cannot be written.
    """
    written = checkpoint_folders(folder / CHECKPOINTS)
    newest = step_of(written[0]) if written else 0
    progress = run.progress
    # The latest step wins, and among the ranks that stand there the first.
    claim = -1 if progress is None else progress.step * grid.size + grid.size - 1 - grid.rank
    best = np.array([claim], np.int64)
    grid.world.allreduce(best, "max")
    is_best = claim == best[0]

    def write() -> None:
        if is_best and progress is not None and progress.step > newest:
            assert run.trainer is not None
            assert run.new_writer is not None
            complete_history(folder / HISTORY, run.trainer.history, progress)
            run.new_writer(grid=ProcessGrid(import_mpi().COMM_SELF)).write(progress)

    agree(grid.world, write)


def complete_history(path: Path, held: History, progress: Progress) -> None:
    """Add to a history file what a rank holds of it, up to a moment.

    Parameters
    ----------
    path : Path
        The file; its last line may be cut off. What comes after a damaged line is left out.
    held : History
        Every rank has all records, whoever writes them.
    progress : Progress
        The moment.
    """
    sound = [line for line in history_lines(path) if not line.problem]
    written = {_identity(line.values) for line in sound}
    ends = {record.epoch: record.step for record in held.epochs if record.epoch < progress.epoch}
    records: list[tuple[int, StepRecord | MeasuredStep | EpochRecord]] = [
        *((record.step, record) for record in held.steps if record.step <= progress.step),
        *((ends[record.epoch], record) for record in held.measured if record.epoch in ends),
        *((record.step, record) for record in held.epochs if record.epoch in ends),
    ]
    values = [{"kind": KINDS[type(record)], **asdict(record)} for _, record in sorted(records, key=itemgetter(0))]
    added = [to_json(one) + "\n" for one in values if _identity(one) not in written]
    write_whole(path, "".join([*(line.text for line in sound), *added]))


def _identity(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells the lines of a history apart that come once; an epoch's has its last step as well."""
    return values["kind"], values.get("epoch"), values.get("step")
