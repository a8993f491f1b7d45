"""Source lines of calls: where a rank's program called the library."""

from __future__ import annotations

import bdb
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from hybridnn.diagnostics.locations import COMMUNICATION_FILES, code_location

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
