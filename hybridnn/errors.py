"""Errors a user can cause; the command line prints them as one line and exits with code 2.

Anything that is not one of these is a defect of the program (or of the machine) and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path

INTERRUPTED = 130
"""Exit code after an interrupt from the keyboard, as shells have it: 128 + SIGINT."""

MOST_CHARACTERS = 1000
"""Of a value or a reason in a message: it may stem from a file, and be of any length."""


def one_line(text: str) -> str:
    """Text of any origin as a part of one line that can be printed, cut where it is very long."""
    text = " ".join(text.split())
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


class HybridnnError(Exception):
    """Base of all errors that name a user's mistake in one line."""

    exit_code = 2


class SettingError(HybridnnError):
    """A setting has a value that is not allowed.

    Parameters
    ----------
    setting : str
        The dotted name, for example ``"training.batch_size"``.
    value : object
        What was given.
    allowed : str
        What would have been accepted, in words.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        super().__init__(f"{one_line(setting)} = {_shown(value)}: {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed

    def in_file(self, path: Path | str) -> SettingError:
        """The same error, whose message begins with the file that has the setting."""
        self.args = (f"{path}: {self}",)
        return self


def _shown(value: object) -> str:
    """A value as it stands in a message; Python itself refuses to write very long integers."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a very large {type(value).__name__}"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


class UnequalSettingError(SettingError):
    """A setting is not the same on all ranks.

    Parameters
    ----------
    setting : str
        The dotted name of the first that differs.
    difference : str
        Names, ranks and values of all that is reported.
    """

    def __init__(self, setting: str, difference: str) -> None:
        HybridnnError.__init__(self, f"{difference}; it must be the same on every rank")
        self.setting = setting
        self.value = difference
        self.allowed = "the same on every rank"


class DataError(HybridnnError):
    """A data set or a file of the user cannot be used as it is."""


class GridError(HybridnnError):
    """The process grid does not fit the ranks or the model."""


class EnvironmentProblem(HybridnnError):  # noqa: N818 - EnvironmentError is a name of Python's own
    """Something outside the program is missing: an MPI library, a folder that can be written, a network."""


class NonFiniteLossError(HybridnnError):
    """The loss became infinite or not a number, and the run was stopped before the step was applied."""

    exit_code = 1


class StoppedBySignal(HybridnnError):  # noqa: N818 - no mistake of anybody's
    """A signal stopped the run; it wrote a checkpoint, from which it can go on.

    Parameters
    ----------
    message : str
    interrupted : bool
        Whether the signal was an interrupt from the keyboard. The exit code is then 130, as shells have it, since a
        script that starts a run again after exit code 75 must end with it.
    """

    exit_code = 75  # EX_TEMPFAIL: the same command will do better later

    def __init__(self, message: str, *, interrupted: bool = False) -> None:
        super().__init__(message)
        if interrupted:
            self.exit_code = INTERRUPTED
