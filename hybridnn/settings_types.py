"""The kinds of values that settings have, and what all their sections share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from hybridnn.settings_errors import refused

__all__ = [
    "AtLeastZero",
    "BelowOne",
    "Betas",
    "Count",
    "Counts",
    "Fraction",
    "Interval",
    "Positive",
    "Section",
    "Seed",
    "Text",
    "Texts",
    "by_dotted_name",
    "list_as_tuple",
    "seconds_of",
]


def list_as_tuple(value: object) -> object:
    """TOML has lists only; frozen settings hold tuples."""
    return tuple(value) if isinstance(value, list) else value


SECONDS = re.compile(r"(\d+(?:\.\d*)?) *s")
"""Seconds as people write them."""


def seconds_of(interval: int | str) -> float | None:
    """The seconds of an `Interval`; None where it is a number of steps."""
    found = SECONDS.fullmatch(interval) if isinstance(interval, str) else None
    return float(found[1]) if found else None


def _steps_or_seconds(value: object) -> object:
    is_steps = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if is_steps or (isinstance(value, str) and seconds_of(value)):
        return value
    raise refused("", value, "must be a whole number of steps, at least 1, or seconds in quotes, as '90 s'")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise refused("", text, "must not hold the character NUL")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
AtLeastZero = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Interval = Annotated[int | str, BeforeValidator(_steps_or_seconds)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(list_as_tuple)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(list_as_tuple)]
Betas = Annotated[tuple[BelowOne, BelowOne], BeforeValidator(list_as_tuple)]


class Section(BaseModel):
    """Frozen, without unknown keys, and without silent conversion: ``epochs = "10"`` is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def foreign_keys(self) -> frozenset[str]:
        """Keys that mean nothing beside the section's other values; setting one of them is refused."""
        return frozenset()

    def require_no_foreign_key(self, beside: str) -> None:
        """Refuse a key that was set and means nothing beside `beside`."""
        for key in sorted(self.foreign_keys() & self.model_fields_set):
            raise refused(key, getattr(self, key), f"does not belong to {beside}")


def by_dotted_name(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with keys such as ``optimizer.lr``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= by_dotted_name(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
