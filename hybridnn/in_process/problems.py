"""Errors in how the ranks of a program communicate, found while they run as threads of one process."""

from __future__ import annotations

from hybridnn.errors import HybridnnError

__all__ = ["CommunicationError", "DeadlockError", "RankStopped", "StuckError"]


class CommunicationError(HybridnnError):
    """Ranks made calls that do not fit, or touched a buffer that a call owned."""

    exit_code = 1


class DeadlockError(CommunicationError):
    """No rank can go on."""


class StuckError(CommunicationError):
    """A rank computed for longer than the limit without a communication call."""


class RankStopped(BaseException):
    """Raised in the ranks that are left when another rank has failed, to end them."""
