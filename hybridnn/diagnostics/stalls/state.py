"""What a rank says of itself when nothing goes on: plain data, the content of ``stall/rank-N.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GroupKey = tuple[str, str, int]
"""What tells the groups of a job from one another: axis, members, and the number among groups alike in both."""

OUTSIDE = "nothing: outside of communication"
PACKAGE = f"{Path(__file__).parents[2]}/"
"""As frames name it: links stay."""

COMMUNICATION_FILES = tuple(
    PACKAGE + name for name in ("comm/", "diagnostics/", "parallel/grid.py", "parallel/node_memory.py")
)
"""Beginnings of the paths of the files that communicate."""


def code_location(file: str, line: int, function: str) -> str:
    """A line of code, without the folders in which Python or the user keep the file."""
    name = f"hybridnn/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file.rpartition("/")[2]
    return f"{name}:{line} in {function}"


@dataclass(frozen=True)
class CallState:
    """A communication call.

    Attributes
    ----------
    operation : str
    axis, members, ordinal
        The group it is made in, as for `GroupState`.
    number : int
        Which collective of its group it is, from 1; 0 for a message.
    nbytes : int
        Bytes of the full vector, or of the message.
    dtype : str
        Empty where there is no array.
    peer : int or None
        Root of a collective, or the other rank of a message.
    detail : str
        How an all-reduce combines, or the tag of a message.
    about : str
        What it is done for; empty where nobody said.
    seconds : float
        Since it was begun.
    """

    operation: str
    axis: str
    members: str
    ordinal: int
    number: int
    nbytes: int
    dtype: str
    peer: int | None
    detail: str
    about: str
    seconds: float

    @property
    def group(self) -> GroupKey:
        """The group it is made in."""
        return self.axis, self.members, self.ordinal

    @property
    def is_message(self) -> bool:
        """Whether it concerns two ranks alone."""
        return self.number == 0

    @property
    def place(self) -> str:
        """Which call of which group it is, in words."""
        if self.is_message:
            way = "to" if self.operation == "send" else "from"
            return f"{self.operation} {way} rank {self.peer}"
        return f"{self.operation} {self.number} of group {self.axis} (ranks {self.members})"

    def __str__(self) -> str:
        array = f", {self.nbytes:,} bytes {self.dtype}" if self.dtype else ""
        return f"{self.place}{array}{f', {self.about}' * bool(self.about)}"


@dataclass(frozen=True)
class GroupState:
    """How far a rank has come in the collectives of one of its groups.

    Attributes
    ----------
    axis : str
    members : str
        Ranks of the grid, as text.
    ordinal : int
        How many groups with this axis and these members there were before.
    entered : int
        Collectives begun.
    recent : tuple of (int, str)
        The last of them: their numbers, and what they are.
    """

    axis: str
    members: str
    ordinal: int
    entered: int
    recent: tuple[tuple[int, str], ...]

    @property
    def key(self) -> GroupKey:
        """What tells the group from others."""
        return self.axis, self.members, self.ordinal


@dataclass(frozen=True)
class Finished:
    """An instruction or call that ended.

    Attributes
    ----------
    kind, name, axis, nbytes
        As for `Event`.
    about : str
    seconds_ago : float
    """

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
    """A line of Python that is being carried out."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return code_location(self.file, self.line, self.function)


@dataclass(frozen=True)
class RankState:
    """All that a rank says of itself.

    Attributes
    ----------
    rank, size : int
        Its number in the grid, and how many there are.
    host : str
    process : int
    time : str
        When this was written, by the rank's own clock.
    beat : int
        How many times it has been written: a rank that stops counting has stopped.
    idle_seconds : float
        Since the rank finished anything.
    stalled : bool
        Whether that is longer than the job's limit.
    busy : str
        The long work outside of training that the rank said it does; else empty.
    waits_for : CallState or None
        None outside of communication.
    site : Frame or None
        The innermost line that is not communication itself.
    caller : Frame or None
        The innermost line of the user's own files: outside of hybridnn, Python and installed packages.
    stack : tuple of Frame
        The innermost lines, the innermost last.
    groups : tuple of GroupState
    finished : tuple of Finished
        The last things, oldest first.
    mpi_call : str
        The line of a call of MPI that no group records, such as a new communicator; empty outside of one.
    lost : str
        Ranks that are gone for good and that the rank waits for, as text.
    left : str
        How the rank left the job, in words; empty while it is there.
    exited : bool
        Whether it left because its interpreter ended.
    can_print : bool
        Whether one of its standard streams is open.
    """

    rank: int
    size: int
    host: str
    process: int
    time: str
    beat: int
    idle_seconds: float
    stalled: bool
    busy: str
    waits_for: CallState | None
    site: Frame | None
    caller: Frame | None
    stack: tuple[Frame, ...]
    groups: tuple[GroupState, ...]
    finished: tuple[Finished, ...]
    mpi_call: str = ""
    lost: str = ""
    left: str = ""
    exited: bool = False
    can_print: bool = True

    @property
    def waits(self) -> bool:
        """Whether it is in a call that waits for other ranks."""
        return self.waits_for is not None or bool(self.mpi_call)

    @property
    def doing(self) -> str:
        """What it waits for or does, in words."""
        if self.left:
            return "left the job"
        if self.waits_for is not None:
            return str(self.waits_for)
        return f"MPI, at {self.mpi_call}" if self.mpi_call else self.busy or OUTSIDE

    @property
    def place(self) -> str:
        """Where it is: the innermost line outside of communication, and the user's own line that leads there."""
        lines = [str(self.site)] if self.site is not None else []
        if self.caller is not None and self.caller != self.site:
            lines.append(str(self.caller))
        return ", from ".join(lines)


@dataclass(frozen=True)
class JobState:
    """What the rank that ended the job knew beside the ranks' own states: the content of ``stall/job.json``.

    Attributes
    ----------
    size : int
    seconds : float
        The job's limit.
    processes : tuple of str
        Host and process of every rank; empty where nobody asked.
    silent : str
        Ranks that gave no sign any more, as text.
    lost : str
        Ranks that had left or were dead, and that others waited for, as text; then no time limit was met.
    gone : str
        Ranks whose processes no longer existed, as text.
    unseen : str
        Ranks on nodes that do not see the files of this one, as text.
    """

    size: int
    seconds: float
    processes: tuple[str, ...]
    silent: str
    lost: str = ""
    gone: str = ""
    unseen: str = ""
