"""Source lines of calls: where a rank's program called the library."""

from __future__ import annotations

import bdb
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from hybridnn.diagnostics.stalls.state import COMMUNICATION_FILES, code_location

PACKAGE = str(Path(__file__).parents[1])
HIDDEN = (str(Path(__file__).parent), *COMMUNICATION_FILES)
"""Code whose lines say nothing about the program: this package, and the groups that wrap every call."""


KERNEL = "ipykernel_"
"""How the name of the folder begins that the cells of a notebook are said to lie in."""

Line = tuple[CodeType, int]
"""What a `Site` is made of: a plain tuple, which takes a tenth of the time, as most calls are never looked at."""


class Site(NamedTuple):
    """A line of code.

    Attributes
    ----------
    code : CodeType
    line : int
    """

    code: CodeType
    line: int

    def __str__(self) -> str:
        file = self.code.co_filename
        in_cell = Path(file).parent.name.startswith(KERNEL)
        return code_location("cell" if in_cell else file, self.line, self.code.co_name)


def calling_line() -> Line:
    """The line of the running thread that called into the library's communication."""
    return _line(sys._getframe(1))


def place_of_thread(thread: int) -> str:
    """Where a running thread is: see `place_of`."""
    return place_of(sys._current_frames().get(thread))


def is_debugged(thread: int) -> bool:
    """Whether a running thread is at the prompt of a debugger, or in a step of it."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename != bdb.__file__:
        frame = frame.f_back
    return frame is not None


def place_of(frame: FrameType | None) -> str:
    """The innermost line outside communication, and where that lies in the package, the user's line that led to it.

    Parameters
    ----------
    frame : frame or None
        Innermost frame of a stack.
    """
    if frame is None:
        return "an unknown line"
    return with_caller(Site(*_line(frame)), frame)


def with_caller(site: Site, frame: FrameType | None) -> str:
    """A line, and where it lies in the package, the user's line that led to the innermost frame of the same stack."""
    caller = _outside(frame, (PACKAGE,)) if _lies_in(site.code.co_filename, (PACKAGE,)) else None
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
