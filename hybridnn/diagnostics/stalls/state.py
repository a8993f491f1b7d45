"""Rank states: what each rank does when a job stalls, as plain data; the content of ``stall/rank-N.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GroupKey = tuple[str, str, int]
"""Identifies a group of the job: axis, members, and ordinal among groups with the same axis and members."""

OUTSIDE = "nothing: outside of communication"
PACKAGE = f"{Path(__file__).parents[2]}/"  # as in stack frames: links are not resolved

COMMUNICATION_FILES = tuple(
    PACKAGE + name for name in ("comm/", "diagnostics/", "parallel/grid.py", "parallel/node_memory.py")
)
"""Beginnings of the paths of files that communicate."""


def code_location(file: str, line: int, function: str) -> str:
    """``file.py:12 in function``, with the path below ``hybridnn/`` for files of this package."""
    name = f"hybridnn/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file.rpartition("/")[2]
    return f"{name}:{line} in {function}"


@dataclass(frozen=True)
class CallState:
    """A communication call in progress."""

    operation: str
    # of its group, as for `GroupState`
    axis: str
    members: str
    ordinal: int
    number: int  # number of the collective in its group, from 1; 0 for a message
    nbytes: int  # bytes of the full vector, or of the message
    dtype: str  # empty without an array
    peer: int | None  # root of a collective, or the other rank of a message
    detail: str  # reduction of an all-reduce, or tag of a message
    about: str  # purpose, such as an instruction of a schedule; empty if unknown
    seconds: float  # since it began

    @property
    def group(self) -> GroupKey:
        """Key of its group."""
        return self.axis, self.members, self.ordinal

    @property
    def is_message(self) -> bool:
        """Whether it is a message between two ranks."""
        return self.number == 0

    @property
    def label(self) -> str:
        """The call and its group: ``allreduce 57 of group world (ranks 0-3)``."""
        if self.is_message:
            return f"{self.operation} {'to' if self.operation == 'send' else 'from'} rank {self.peer}"
        return f"{self.operation} {self.number} of group {self.axis} (ranks {self.members})"

    def __str__(self) -> str:
        array = f", {self.nbytes:,} bytes {self.dtype}" if self.dtype else ""
        return f"{self.label}{array}{f', {self.about}' * bool(self.about)}"


@dataclass(frozen=True)
class GroupState:
    """Progress of a rank in the collectives of one of its groups."""

    axis: str
    members: str  # ranks of the grid, as `format_ranks` writes them
    ordinal: int  # number of earlier groups with this axis and these members
    entered: int  # collectives begun
    recent: tuple[tuple[int, str], ...]  # numbers and signatures of the last collectives

    @property
    def key(self) -> GroupKey:
        """Key of the group."""
        return self.axis, self.members, self.ordinal


@dataclass(frozen=True)
class FinishedEvent:
    """An `Event` of the recorder, with its age in seconds."""

    kind: str
    name: str
    axis: str
    nbytes: int
    about: str
    seconds_ago: float

    def __str__(self) -> str:
        if self.about.startswith(self.name):
            return self.about
        return f"{self.name}{f' ({self.axis})' * bool(self.axis)}{f', {self.about}' * bool(self.about)}"


@dataclass(frozen=True)
class Frame:
    """A stack frame."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return code_location(self.file, self.line, self.function)


@dataclass(frozen=True)
class RankState:
    """State of a rank."""

    # its number in the grid, and the number of ranks
    rank: int
    size: int
    host: str
    process: int
    time: str  # when this was written, by the rank's own clock
    heartbeat: int = 0  # how often it has been written; a rank whose heartbeat stays the same has stopped
    idle_seconds: float = 0.0  # since the rank completed anything
    stalled: bool = False  # whether that is longer than the limit of the job
    busy_with: str = ""  # work that the rank announced by ``trainer.busy``; else empty
    call: CallState | None = None  # the call in which the rank waits; None outside of communication
    call_site: Frame | None = None  # the innermost line outside of communication code
    # the innermost line of a file that is not of hybridnn, Python or an installed package
    user_line: Frame | None = None
    stack: tuple[Frame, ...] = ()  # the innermost lines, the innermost last
    groups: tuple[GroupState, ...] = ()
    finished: tuple[FinishedEvent, ...] = ()  # the last events, oldest first
    unrecorded_call: str = ""  # the line of a call of MPI that no group records, such as a new communicator; else empty
    departed: str = ""  # ranks that have left or died and that this rank waits for, as text
    departure: str = ""  # how the rank left the job; empty while it has not
    exited: bool = False  # whether it left because its interpreter ended
    can_print: bool = True  # whether one of its standard streams is open

    @property
    def is_waiting(self) -> bool:
        """Whether it is in a call that waits for other ranks."""
        return self.call is not None or bool(self.unrecorded_call)

    @property
    def activity(self) -> str:
        """The call in which it waits, or its announced work."""
        if self.departure:
            return "left the job"
        if self.call is not None:
            return str(self.call)
        return f"MPI, at {self.unrecorded_call}" if self.unrecorded_call else self.busy_with or OUTSIDE

    @property
    def location(self) -> str:
        """The call site, and the user's line from which it was reached."""
        lines = [str(self.call_site)] if self.call_site is not None else []
        if self.user_line is not None and self.user_line != self.call_site:
            lines.append(str(self.user_line))
        return ", from ".join(lines)


@dataclass(frozen=True)
class JobState:
    """Facts about a job from the rank that ended it: the content of ``stall/job.json``. Ranks are given as text."""

    size: int
    limit: float  # seconds after which a job without progress ends
    processes: tuple[str, ...]  # host and process of every rank; may be empty
    unresponsive: str  # ranks that did not answer
    # ranks that had left or died, and that others waited for; if there are any, `limit` was not reached
    departed: str = ""
    dead: str = ""  # ranks whose processes no longer existed
    unreachable: str = ""  # ranks on nodes that share no folder with this one
