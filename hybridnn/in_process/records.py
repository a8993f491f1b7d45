"""Records of the calls of ranks, and the source lines where their programs made them."""

from __future__ import annotations

import bdb
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from hybridnn.diagnostics.failsafe import COMMUNICATION_FILES, code_location

PACKAGE = (str(Path(__file__).parents[1]),)
HIDDEN = (str(Path(__file__).parent), *COMMUNICATION_FILES)
"""Code below the calls of a program: this package, and the groups that wrap every call."""

KERNEL = "ipykernel_"  # prefix of the folder in which IPython places the cells of a notebook

Line = tuple[CodeType, int]
"""Fields of a `Site`: a plain tuple, which takes a tenth of the time, as most calls are never looked at."""


class Site(NamedTuple):
    """A line of code."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        file = self.code.co_filename
        in_cell = Path(file).parent.name.startswith(KERNEL)
        return code_location("cell" if in_cell else file, self.line, self.code.co_name)


def calling_line() -> Line:
    """The line of the running thread that called into the library's communication."""
    return _line(sys._getframe(1))


def location_of_thread(thread: int) -> str:
    """The innermost line of a running thread outside communication, as `describe_line` describes it."""
    frame = sys._current_frames().get(thread)
    return "an unknown line" if frame is None else describe_line(Site(*_line(frame)), frame)


def is_debugged(thread: int) -> bool:
    """Whether a running thread is at the prompt of a debugger, or in a step of it."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename != bdb.__file__:
        frame = frame.f_back
    return frame is not None


def describe_line(site: Site, frame: FrameType) -> str:
    """A line and, if it is in the package, the user's line that led to the innermost frame of the same stack."""
    caller = _outside(frame, PACKAGE) if _lies_in(site.code.co_filename, PACKAGE) else None
    return f"{site}, called from {Site(caller.f_code, caller.f_lineno)}" if caller else str(site)


def _line(frame: FrameType) -> Line:
    found = _outside(frame, HIDDEN) or frame
    return found.f_code, found.f_lineno


def _outside(frame: FrameType | None, folders: tuple[str, ...]) -> FrameType | None:
    """The innermost frame from `frame` outwards whose file lies in none of `folders`."""
    while frame is not None and _lies_in(frame.f_code.co_filename, folders):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def _lies_in(path: str, folders: tuple[str, ...]) -> bool:
    return path.startswith(folders)


# -- records -----------------------------------------------------------------------------------------------------------

Moment = tuple[int, float]  # fields of an `Instant`

Record = tuple[int, str, int, int, Moment, Moment, Moment, Line, int, bool]
"""Fields of a `Message`: a plain tuple, which is faster to make, as most calls are never looked at."""


class Instant(NamedTuple):
    """Time of an event: communication calls of all ranks before it, and seconds on the virtual clock of the rank."""

    call: int
    seconds: float


class Message(NamedTuple):
    """A message or collective of a rank."""

    rank: int
    name: str  # the operation
    peer: int  # the other rank of a message, the root of a collective, or -1
    nbytes: int
    begun: Instant  # the call
    waited: Instant  # the beginning of the wait for it
    ended: Instant  # the end of that wait
    site: Site  # line of the call
    number: int = -1  # the same for a send and its receive; -1 for collectives
    arrived: bool = True  # False where no rank could continue before it ended


def message_of(record: Record) -> Message:
    """The message or collective of a record."""
    rank, name, peer, nbytes, begun, waited, ended, line, number, arrived = record
    instants = Instant(*begun), Instant(*waited), Instant(*ended)
    return Message(rank, name, peer, nbytes, *instants, Site(*line), number, arrived)
