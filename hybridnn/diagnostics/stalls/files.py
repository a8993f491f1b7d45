"""The files by which ranks report that nothing goes on, ``stall/rank-N.json``, or that they left, ``left-N.json``.

Each is written whole. Ranks that stand still cannot be reached by messages; files they can still write, from a thread
beside what hangs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hybridnn.diagnostics.stalls.diagnosis import StallFinding, diagnose
from hybridnn.diagnostics.stalls.state import JobState, RankState
from hybridnn.errors import DataError
from hybridnn.utils.files import JSON_BYTES, FileError, folder_names, parse_json, read_bytes
from hybridnn.utils.text import MOST_RANKS, parse_ranks

if TYPE_CHECKING:
    from pydantic import TypeAdapter


FOLDER = "stall"
JOB = "job.json"
ALARM = "alarm"
LEFT_FILES = "left-*.json"
PARTIAL = ".partial"
RANK_FILES = "rank-*.json"

State = TypeVar("State", RankState, JobState)


class StallFiles:
    """The files of a running job.

    Parameters
    ----------
    folder : Path
        The run folder, the same for all ranks. ``stall`` in it is made when something is written.
    temporary : bool
        Whether `folder` itself is removed with the last file.
    """

    def __init__(self, folder: Path, *, temporary: bool = False) -> None:
        self.path, self._temporary = folder / FOLDER, temporary

    @property
    def alarm(self) -> bool:
        """Whether a rank has raised the alarm: all that live answer by writing what they do."""
        return (self.path / ALARM).exists()

    def raise_alarm(self) -> None:
        """Ask all ranks to write what they do.

        Raises
        ------
        OSError
        """
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / ALARM).touch()

    def end_alarm(self) -> None:
        """Ask no more."""
        with contextlib.suppress(OSError):
            (self.path / ALARM).unlink(missing_ok=True)

    def write(self, state: RankState | JobState) -> None:
        """Write a rank's state, or the job's, over what was there.

        Raises
        ------
        OSError
        """
        name = JOB if isinstance(state, JobState) else _name(state.rank, left=bool(state.left))
        self.path.mkdir(parents=True, exist_ok=True)
        # Making a file here also makes a network file system look again for those of other nodes.
        partial = self.path / f".{name}{PARTIAL}"
        partial.write_text(dumps(asdict(state), indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(partial, self.path / name)

    def read(self, rank: int) -> RankState | None:
        """What a rank wrote last; None where there is nothing that can be read."""
        try:
            return _parse(self.path / _name(rank), RankState)
        except DataError:
            return None

    def left(self) -> dict[int, RankState]:
        """What the ranks that left wrote last, by rank."""
        states = []
        with contextlib.suppress(OSError, DataError):
            states = [_parse(file, RankState) for file in self.path.glob(LEFT_FILES)]
        return {state.rank: state for state in states}

    def has_left(self, rank: int) -> bool:
        """Whether a rank noted that it left."""
        return (self.path / _name(rank, left=True)).exists()

    def count_left(self) -> int:
        """How many ranks left."""
        return sum(1 for _ in self.path.glob(LEFT_FILES))

    def remove(self, rank: int) -> None:
        """Take back what a rank wrote, and with the last rank's file everything else."""
        with contextlib.suppress(OSError):
            (self.path / _name(rank)).unlink(missing_ok=True)
            if not any(_rank_files(self.path)) and not any(self.path.glob(LEFT_FILES)):
                self.clear()

    def clear(self) -> None:
        """Remove everything; what cannot be removed stays."""
        files = [*_rank_files(self.path), *self.path.glob(LEFT_FILES), *self.path.glob(f".*{PARTIAL}")]
        with contextlib.suppress(OSError):
            for file in [*files, self.path / JOB, self.path / ALARM]:
                file.unlink(missing_ok=True)
        for folder in (self.path, self.path.parent)[: 2 if self._temporary else 1]:
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass(frozen=True)
class StallRecord:
    """What is left of a job that stood still.

    Attributes
    ----------
    states : mapping
        Of the ranks that gave a sign to the end, by rank.
    job : JobState or None
        None where no rank ended the job for it: something else did, or it may still go on.
    """

    states: Mapping[int, RankState]
    job: JobState | None

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return self.job.size if self.job is not None else max(state.size for state in self.states.values())

    @property
    def findings(self) -> tuple[StallFinding, ...]:
        """Who did not arrive."""
        if self.job is None:
            return diagnose(self.states, self.size)
        gone, unseen = parse_ranks(self.job.gone), parse_ranks(self.job.unseen)
        return diagnose(self.states, self.size, self.job.processes, gone, unseen)


def read_stall(folder: Path) -> StallRecord | None:
    """Read the files of a run folder; None where there are none.

    Raises
    ------
    DataError
        If a file cannot be read, or is not what a rank writes.
    """
    path = folder / FOLDER
    names = folder_names(path)
    job = _parse(path / JOB, JobState) if JOB in names else None
    states = [
        _parse(path / name, RankState)
        for name in names
        if any(fnmatchcase(name, kind) for kind in (RANK_FILES, LEFT_FILES))
    ]
    silent = parse_ranks(job.silent) if job is not None else ()
    states.sort(key=lambda state: (state.rank, state.left))
    told = {state.rank: state for state in states if state.rank not in silent}
    return StallRecord(told, job) if any(not state.left for state in told.values()) else None


def _name(rank: int, *, left: bool = False) -> str:
    return f"{'left' if left else 'rank'}-{rank}.json"


def _rank_files(path: Path) -> Iterator[Path]:
    return path.glob(RANK_FILES)


@cache
def _reader_of(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _parse(file: Path, kind: type[State]) -> State:
    from pydantic import ValidationError  # takes long to load, and only a job that stands still reads files

    from hybridnn.utils.settings_models import first_problem

    text = read_bytes(file, JSON_BYTES)
    try:
        parse_json(text)
        state: State = _reader_of(kind).validate_json(text, strict=True)  # type: ignore[arg-type]  # a class is hashable
        _require_possible(state)
    except ValidationError as error:
        raise FileError(file, f"not the state of a rank: {first_problem(error)}") from error
    except ValueError as error:
        raise FileError(file, f"not the state of a rank: {error}") from error
    return state


def _require_possible(state: RankState | JobState) -> None:
    """Refuse ranks that the job does not have.

    Raises
    ------
    ValueError
    """
    if isinstance(state, JobState):
        texts = [state.silent, state.lost, state.gone, state.unseen]
    else:
        calls = () if state.waits_for is None else (state.waits_for,)
        texts = [str(state.rank), state.lost, *(part.members for part in (*calls, *state.groups))]
        texts += [str(call.peer) for call in calls if call.peer is not None]
    if not 1 <= state.size <= MOST_RANKS:
        raise ValueError(f"{state.size} ranks")
    for text in set(texts):
        if outside := [rank for rank in parse_ranks(text) if not 0 <= rank < state.size]:
            raise ValueError(f"rank {outside[0]} of {state.size}")
