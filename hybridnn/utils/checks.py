"""Checks of values that a user gives; each error names the setting, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Integral, Real

from hybridnn.errors import SettingError


def require_whole(name: str, value: object, minimum: int, below: int = 2**63) -> None:
    """Refuse, by a `SettingError`, a value that is not an integer with ``minimum <= value < below``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not minimum <= int(value) < below:
        allowed = f", {minimum} or more" if below == 2**63 else f" from {minimum} to {below - 1:,}"
        raise SettingError(name, value, f"a whole number{allowed}")


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    allowed: str = "",
) -> None:
    """Refuse, by a `SettingError`, a value that is not a finite number in the range.

    Parameters
    ----------
    allowed : str
        What is allowed, for the message; by default the end of the range that is violated.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        problem = "must be a number"
    elif not isfinite(number := float(value)):
        problem = "must be a finite number"
    elif above is not None and number <= above:
        problem = f"must be greater than {above:g}"
    elif at_least is not None and number < at_least:
        problem = f"must be at least {at_least:g}"
    elif below is not None and number >= below:
        problem = f"must be less than {below:g}"
    elif at_most is not None and number > at_most:
        problem = f"must be at most {at_most:g}"
    else:
        return
    raise SettingError(name, value, allowed or problem)


def require_bool(name: str, value: object) -> None:
    """Refuse, by a `SettingError`, a value that is neither True nor False."""
    if not isinstance(value, bool):
        raise SettingError(name, value, "must be true or false")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse, by a `SettingError`, a value that is not one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise SettingError(name, value, must_be_one_of(choices))


def must_be_one_of(choices: Iterable[str]) -> str:
    """``must be 'a', 'b' or 'c'``, for messages."""
    *others, last = map(repr, choices)
    return f"must be {', '.join(others)} or {last}" if others else f"must be {last}"
