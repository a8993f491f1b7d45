"""Communication errors of ranks in one process: deadlocks, calls that do not match, buffers that a call owns."""

from __future__ import annotations

from hybridnn.errors import HybridnnError
from hybridnn.in_process.drawing import SvgPicture
from hybridnn.pipeline.drawing.drawing import Drawing


class CommunicationError(HybridnnError):
    """Calls of ranks do not match, or the program accessed a buffer that a call owned."""

    exit_code = 1


class DeadlockError(SvgPicture, CommunicationError):
    """No rank can continue.

    Its picture has a row for each rank and an arrow for each message, up to the deadlock.

    Parameters
    ----------
    text : str
    drawing : Drawing
        The calls up to the deadlock.
    """

    def __init__(self, text: str, drawing: Drawing) -> None:
        super().__init__(text)
        self._drawing = drawing

    @property
    def drawing(self) -> Drawing:
        """The calls up to the deadlock."""
        return self._drawing


class StuckError(CommunicationError):
    """A rank computed for longer than the limit without a communication call."""


class RankStopped(BaseException):
    """Ends a rank when another one has failed."""
