"""Checks of numbers that a user gives, with one message for all: the setting, the value, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Integral, Real

from hybridnn.errors import SettingError


def require_whole(name: str, value: object, least: int, below: int = 2**63) -> None:
    """Refuse what is not a whole number from `least` up to, not including, `below`.

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) < below:
        allowed = f", {least} or more" if below == 2**63 else f" from {least} to {below - 1:,}"
        raise SettingError(name, value, f"a whole number{allowed}")


def require_number(name: str, value: object, least: float, most: float, allowed: str, *, open_ends: str = "") -> None:
    """Refuse what is not a finite number between `least` and `most`.

    Parameters
    ----------
    allowed : str
        The range in words, for the message.
    open_ends : str
        ``"("`` where `least` itself is refused, ``")"`` where `most` is, ``"()"`` for both.

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        at_open_end = ("(" in open_ends and number == least) or (")" in open_ends and number == most)
        if least <= number <= most and isfinite(number) and not at_open_end:
            return
    raise SettingError(name, value, allowed)


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse what is not one of `choices`.

    Raises
    ------
    SettingError
        Listing them.
    """
    choices = list(choices)
    if value not in choices:
        raise SettingError(name, value, "allowed are " + ", ".join(choices))
