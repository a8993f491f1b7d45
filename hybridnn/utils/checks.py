"""Checks of values that a user gives; each error names the setting, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Integral, Real

from hybridnn.errors import SettingError


def require_whole(name: str, value: object, minimum: int, below: int = 2**63) -> None:
    """Refuse a value that is not an integer with ``minimum <= value < below``.

    Raises
    ------
    SettingError
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not minimum <= int(value) < below:
        allowed = f", {minimum} or more" if below == 2**63 else f" from {minimum} to {below - 1:,}"
        raise SettingError(name, value, f"a whole number{allowed}")


def require_number(
    name: str, value: object, minimum: float, maximum: float, allowed: str, *, open_ends: str = ""
) -> None:
    """Refuse a value that is not a finite number from `minimum` to `maximum`.

    Parameters
    ----------
    allowed : str
        The range as text, for the message.
    open_ends : str
        ``"("`` if `minimum` itself is refused, ``")"`` if `maximum` is, ``"()"`` for both.

    Raises
    ------
    SettingError
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        at_open_end = ("(" in open_ends and number == minimum) or (")" in open_ends and number == maximum)
        if minimum <= number <= maximum and isfinite(number) and not at_open_end:
            return
    raise SettingError(name, value, allowed)


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of `choices`.

    Raises
    ------
    SettingError
    """
    choices = list(choices)
    if value not in choices:
        raise SettingError(name, value, "allowed are " + ", ".join(choices))
