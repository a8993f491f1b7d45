"""Records of the calls of ranks, the source lines where their programs made them, and their diagram."""

from __future__ import annotations

import bdb
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.diagnostics.failsafe import COMMUNICATION_FILES, code_location

if TYPE_CHECKING:
    from hybridnn.drawing.drawing import Arrow, Box, Drawing

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


# -- diagram ---------------------------------------------------------------------------------------------------------

MAX_CALLS = 400  # most calls of a picture: the last ones

KINDS = {"send": "send", "receive": "wait"}


def draw_calls(size: int, messages: Sequence[Message]) -> Drawing:
    """Draw the calls of `size` ranks, in the order in which they ended.

    The time axis is the virtual clock where any call took time on it, and otherwise counts calls.
    """
    from hybridnn.drawing.drawing import Arrow, Box, Drawing, Row  # which a single rank does not need

    shown = messages[-MAX_CALLS:]
    by_clock = any(message.ended.seconds > 0 for message in shown)

    def absolute(instant: Instant) -> float:
        return 1e6 * instant.seconds if by_clock else float(instant.call)

    first = min((absolute(message.begun) for message in shown), default=0.0)

    def time(instant: Instant) -> float:
        return absolute(instant) - first

    def box(message: Message) -> Box:
        label = "" if message.name in KINDS else message.name
        kind = KINDS.get(message.name, "reduce")
        return Box(time(message.waited), time(message.ended), label, kind, detail=_detail(message))

    def arrows() -> Iterator[Arrow]:
        """From every send to its receive; to the end of the picture where there is none."""
        receives = {message.number: message for message in shown if message.name == "receive" and message.number >= 0}
        for send in shown:
            receive = receives.get(send.number) if send.name == "send" else None
            if receive is not None:
                yield Arrow(send.rank, send.peer, time(send.begun), time(receive.ended))
            elif send.name == "send" and not send.arrived:
                yield Arrow(send.rank, send.peer, time(send.begun), makespan, arrives=False)

    waits = [message for message in shown if time(message.ended) > time(message.waited)]
    rows = tuple(Row(f"rank {rank}", tuple(box(item) for item in waits if item.rank == rank)) for rank in range(size))
    makespan = max((time(message.ended) for message in shown), default=0.0)
    since = f"{first:,.6g} µs" if by_clock else f"call {first:.0f}"
    left_out = f", the last {len(shown)} of {len(messages)}, from {since} on" if len(shown) < len(messages) else ""
    return Drawing(
        f"{size} ranks: {len(shown)} calls{left_out}",
        rows,
        makespan,
        "" if by_clock else "time: communication calls of all ranks",
        "µs" if by_clock else "",
        tuple(arrows()),
    )


def _detail(message: Message) -> str:
    peer = f" {'from' if message.name == 'receive' else 'to'} rank {message.peer}" if message.name in KINDS else ""
    return f"{message.name}{peer}, {message.nbytes:,} bytes, at {message.site}"
