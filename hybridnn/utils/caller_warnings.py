"""Warnings at the line of the user's program that led to them."""

from __future__ import annotations

import sys
import warnings
from functools import cache

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
