"""Stall files: rank states in a folder that the ranks share, and the report that is read from them.

A rank that hangs receives no messages, but a thread beside it can still write files. ``rank-N.json`` is the state of a
rank during an alarm, ``left-N.json`` that of a rank that left. Each is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cache
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hybridnn.comm.mpi import ranks_within
from hybridnn.diagnostics.diagnosis import StallRecord
from hybridnn.diagnostics.rank_state import JobState, RankState
from hybridnn.errors import DataError
from hybridnn.utils.files import JSON_BYTES, FileError, folder_names, parse_json, read_bytes
from hybridnn.utils.text import MAX_RANKS, parse_ranks

if TYPE_CHECKING:
    from mpi4py import MPI
    from pydantic import TypeAdapter

FOLDER = "stall"
JOB = "job.json"
ALARM = "alarm"
RANK_FILES = "rank-*.json"
LEFT_FILES = "left-*.json"
PARTIAL = ".partial"

State = TypeVar("State", RankState, JobState)


class StallFiles:
    """Stall files of a running job, in the subfolder ``stall`` of a folder that all ranks share.

    The subfolder is created when something is written. A `temporary` folder is removed with the last file.
    """

    def __init__(self, folder: Path, *, temporary: bool = False) -> None:
        self.path, self._temporary = folder / FOLDER, temporary

    @property
    def alarm(self) -> bool:
        """Whether a rank has raised an alarm, during which all ranks write their states."""
        return (self.path / ALARM).exists()

    def raise_alarm(self) -> None:
        """Start an alarm; may raise `OSError`."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / ALARM).touch()

    def end_alarm(self) -> None:
        """End an alarm."""
        with contextlib.suppress(OSError):
            (self.path / ALARM).unlink(missing_ok=True)

    def write(self, state: RankState | JobState) -> None:
        """Write the state of a rank or of the job, in place of an earlier one; may raise `OSError`."""
        name = JOB if isinstance(state, JobState) else _name(state.rank, left=bool(state.departure))
        self.path.mkdir(parents=True, exist_ok=True)
        # A new file also makes a network file system look again for the files of other nodes.
        partial = self.path / f".{name}{PARTIAL}"
        partial.unlink(missing_ok=True)  # a link would lead to a file elsewhere
        partial.write_text(dumps(asdict(state), indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(partial, self.path / name)

    def read(self, rank: int) -> RankState | None:
        """The last state of a rank; None where there is no valid file."""
        try:
            return _parse(self.path / _name(rank), RankState)
        except DataError:
            return None

    def left(self) -> dict[int, RankState]:
        """States of the ranks that left, by rank."""
        states = []
        with contextlib.suppress(OSError, DataError):
            states = [_parse(file, RankState) for file in self._matching(LEFT_FILES)]
        return {state.rank: state for state in states}

    def has_left(self, rank: int) -> bool:
        """Whether there is a file of a rank that left."""
        return (self.path / _name(rank, left=True)).exists()

    def count_left(self) -> int:
        """Number of ranks that left."""
        return len(self._matching(LEFT_FILES))

    def remove(self, rank: int) -> None:
        """Remove the file of a rank, and after the last one everything else."""
        with contextlib.suppress(OSError):
            (self.path / _name(rank)).unlink(missing_ok=True)
            if not any(self.path.glob(RANK_FILES)) and not any(self.path.glob(LEFT_FILES)):
                self.clear()

    def clear(self) -> None:
        """Remove all files; what cannot be removed stays."""
        files = self._matching(RANK_FILES, LEFT_FILES, f".*{PARTIAL}")
        with contextlib.suppress(OSError):
            for file in [*files, self.path / JOB, self.path / ALARM]:
                file.unlink(missing_ok=True)
        for folder in (self.path, self.path.parent)[: 2 if self._temporary else 1]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _matching(self, *patterns: str) -> list[Path]:
        """Files whose names match; none if there is no folder, or another rank removes it at this moment."""
        with contextlib.suppress(OSError):
            return [file for pattern in patterns for file in self.path.glob(pattern)]
        return []


# -- a folder for ranks without a run folder ---------------------------------------------------------------------------


SharedFolder = tuple[Path, tuple[int, ...]]
"""An empty folder, and the ranks of the grid that share it, this one among them."""


def create_shared_folder(world: MPI.Intracomm, node: MPI.Intracomm | None) -> SharedFolder:
    """Create a folder that as many ranks as possible share; collective over the grid's ranks, `world`.

    `node` are those of this node; None for one rank.

    It is one for all ranks in the temporary directory or in the current one, else one for each node, else one for this
    rank alone.
    """
    candidates: list[tuple[MPI.Intracomm | None, Callable[[], str]]] = [
        (world, tempfile.gettempdir),
        (world, lambda: str(Path.cwd())),
        (node, tempfile.gettempdir),
    ]
    for comm, parent in candidates:
        folder = None if comm is None else _create_for(comm, parent)
        if comm is not None and folder is not None:
            return folder, tuple(ranks_within(comm, world))
    return _create(tempfile.gettempdir) or Path("hybridnn-stall"), (world.Get_rank(),)


def _create_for(comm: MPI.Intracomm, parent: Callable[[], str]) -> Path | None:
    """A folder that all ranks of `comm` see; None on all of them where one does not."""
    created = _create(parent) if comm.Get_rank() == 0 else None
    folder: Path | None = comm.bcast(created)
    if all(comm.allgather(folder is not None and folder.is_dir())):
        return folder
    if created is not None:
        with contextlib.suppress(OSError):
            created.rmdir()
    return None


def _create(parent: Callable[[], str]) -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="hybridnn-stall-", dir=parent()))
    except OSError:
        return None


# -- reading -----------------------------------------------------------------------------------------------------------


def read_stall(folder: Path) -> StallRecord | None:
    """Read the stall files of a run folder; None without any, `DataError` if one is not valid."""
    path = folder / FOLDER
    names = folder_names(path)
    job = _parse(path / JOB, JobState) if JOB in names else None
    states = [
        _parse(path / name, RankState)
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in (RANK_FILES, LEFT_FILES))
    ]
    unresponsive = parse_ranks(job.unresponsive) if job is not None else ()
    states.sort(key=lambda state: (state.rank, state.departure))
    by_rank = {state.rank: state for state in states if state.rank not in unresponsive}
    return StallRecord(by_rank, job) if any(not state.departure for state in by_rank.values()) else None


def _name(rank: int, *, left: bool = False) -> str:
    return f"{'left' if left else 'rank'}-{rank}.json"


@cache
def _reader_of(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _parse(file: Path, kind: type[State]) -> State:
    from pydantic import ValidationError  # takes long to load, and only a stalled job reads files

    from hybridnn.utils.settings_models import first_problem

    text = read_bytes(file, JSON_BYTES)
    try:
        parse_json(text)
        state: State = _reader_of(kind).validate_json(text, strict=True)  # type: ignore[arg-type]  # a class is hashable
        _require_ranks_of_job(state)
    except ValidationError as error:
        raise FileError(file, f"not the state of a rank: {first_problem(error)}") from error
    except ValueError as error:
        raise FileError(file, f"not the state of a rank: {error}") from error
    return state


def _require_ranks_of_job(state: RankState | JobState) -> None:
    """Raise `ValueError` for ranks outside of the job."""
    if isinstance(state, JobState):
        texts = [state.unresponsive, state.departed, state.dead, state.unreachable]
    else:
        calls = () if state.call is None else (state.call,)
        texts = [str(state.rank), state.departed, *(part.members for part in (*calls, *state.groups))]
        texts += [str(call.peer) for call in calls if call.peer is not None]
    if not 1 <= state.size <= MAX_RANKS:
        raise ValueError(f"{state.size} ranks")
    for text in set(texts):
        if outside := [rank for rank in parse_ranks(text) if not 0 <= rank < state.size]:
            raise ValueError(f"rank {outside[0]} of {state.size}")
