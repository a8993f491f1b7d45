"""Errors that a user can cause, and warnings; the command line prints an error as one line and exits with code 2.

An exception of another kind is a defect of the program or of the machine, and keeps its traceback.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path

INTERRUPTED = 130  # exit code after an interrupt from the keyboard, as in shells: 128 + SIGINT
MAX_CHARACTERS = 1000  # length of a value or a reason in a message: it may come from a file and be arbitrarily long


def shorten(text: str, limit: int = MAX_CHARACTERS) -> str:
    """`text`, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str) -> str:
    """Arbitrary text as part of one printable line, cut to `MAX_CHARACTERS`."""
    text = " ".join(text.split())
    return shorten(text if text.isprintable() else repr(text)[1:-1])


class HybridnnError(Exception):
    """Base of all errors that describe a user's mistake in one line."""

    exit_code = 2


class SettingError(HybridnnError):
    """A setting has a value that is not allowed.

    Parameters
    ----------
    setting : str
        The dotted name, for example ``"training.batch_size"``.
    value : object
        The refused value.
    allowed : str
        What is accepted, as text.
    message : str, optional
        By default setting, value and what is accepted.
    """

    def __init__(self, setting: str, value: object, allowed: str, message: str | None = None) -> None:
        super().__init__(f"{one_line(setting)} = {_shown(value)}: {allowed}" if message is None else message)
        self.setting = setting
        self.value = value
        self.allowed = allowed

    def in_file(self, path: Path | str) -> SettingError:
        """The same error with the file that has the setting at the beginning of its message."""
        self.args = (f"{path}: {self}",)
        return self


def _shown(value: object) -> str:
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):  # Python refuses to write very long integers
        return f"a very large {type(value).__name__}"


class UnequalSettingError(SettingError):
    """A setting is not the same on all ranks; the difference has names, ranks and values of all that are reported."""

    def __init__(self, setting: str, difference: str) -> None:
        allowed = "the same on every rank"
        super().__init__(setting, difference, allowed, f"{difference}; it must be {allowed}")


class DataError(HybridnnError):
    """A data set or a file of the user cannot be used as it is."""


class StateError(HybridnnError):
    """A trainer cannot do this now: it was freed, is in use, or was interrupted within a step."""


class GridError(HybridnnError):
    """The process grid does not fit the ranks or the model."""


class EnvironmentProblem(HybridnnError):  # noqa: N818 - EnvironmentError is a built-in name
    """Something outside the program is missing: an MPI library, a writable folder, a network."""


class NonFiniteLossError(HybridnnError):
    """The loss or the weights became infinite or NaN; with an exact method, the step was not applied.

    The message is `what` became so, and where, with the `advice`; steps are counted from 1.
    """

    exit_code = 1

    def __init__(self, what: str, step: int, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what, self.step = what, step


class StoppedBySignal(HybridnnError):  # noqa: N818 - not an error
    """A signal stopped the run after it had written a checkpoint, from which it can be resumed.

    If it was an interrupt from the keyboard, the exit code is 130, as in shells: a script that restarts a run after
    exit code 75 must end with it.
    """

    exit_code = 75  # EX_TEMPFAIL: the same command can succeed later

    def __init__(self, message: str, *, interrupted: bool = False) -> None:
        super().__init__(message)
        if interrupted:
            self.exit_code = INTERRUPTED


# -- warnings ----------------------------------------------------------------------------------------------------------

SKIPPED = ("hybridnn", "sklearn", "joblib")  # packages of the callers that are passed over


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package; in fits of estimators once for each line.

    Python shows a warning once for each line by itself, but scikit-learn makes it forget what was shown.
    """
    frame, in_estimator = sys._getframe(1), False
    while frame.f_back is not None and (module := frame.f_globals.get("__name__", "")).partition(".")[0] in SKIPPED:
        in_estimator |= module == "hybridnn.sklearn" or not module.startswith("hybridnn.")
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    if in_estimator:
        _warn_once(text, category, file, line)  # type: ignore[arg-type]  # a type has a hash
    else:
        warnings.warn_explicit(
            text, category, file, line, registry=frame.f_globals.setdefault("__warningregistry__", {})
        )


@cache
def _warn_once(text: str, category: type[Warning], file: str, line: int) -> None:
    warnings.warn_explicit(text, category, file, line)
