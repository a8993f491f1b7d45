"""Locations in code, as reports name them, and the files of this package that communicate."""

from __future__ import annotations

from pathlib import Path
from types import FrameType

PACKAGE = f"{Path(__file__).parents[1]}/"  # as in stack frames: links are not resolved

COMMUNICATION_FILES = tuple(
    PACKAGE + name for name in ("comm/", "diagnostics/failsafe.py", "parallel/grid.py", "parallel/node_memory.py")
)
"""Beginnings of the paths of files that communicate."""


def code_location(file: str, line: int, function: str) -> str:
    """``file.py:12 in function``, with the path below ``hybridnn/`` for files of this package."""
    name = f"hybridnn/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file.rpartition("/")[2]
    return f"{name}:{line} in {function}"


def frame_location(frame: FrameType) -> str:
    """`code_location` of a frame."""
    return code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
