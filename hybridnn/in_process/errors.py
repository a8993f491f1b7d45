"""Errors in how the ranks of a program communicate, found while all of them run in one process."""

from __future__ import annotations

from pathlib import Path

from hybridnn.errors import HybridnnError
from hybridnn.in_process.drawing import write_svg
from hybridnn.pipeline.drawing.drawing import Drawing
from hybridnn.pipeline.drawing.svg import svg_text


class CommunicationError(HybridnnError):
    """Ranks made calls that do not fit, or touched a buffer that a call owned."""

    exit_code = 1


class DeadlockError(CommunicationError):
    """No rank can go on.

    Parameters
    ----------
    text : str
    drawing : Drawing
        The calls up to there.
    """

    def __init__(self, text: str, drawing: Drawing) -> None:
        super().__init__(text)
        self.drawing = drawing

    def draw(self, path: str | Path) -> None:
        """Write the calls up to the deadlock as an SVG picture: a row for each rank, an arrow for each message."""
        write_svg(self.drawing, path)

    def _repr_svg_(self) -> str:
        """Shown by a notebook."""
        return svg_text(self.drawing)


class StuckError(CommunicationError):
    """A rank computed for longer than the limit without a communication call."""


class RankStopped(BaseException):
    """Raised in the ranks that are left when another rank has failed, to end them."""
