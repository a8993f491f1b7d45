"""The kinds of values that settings have, and what all their sections share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hybridnn.settings_errors import refused

__all__ = [
    "AtLeastZero",
    "BelowOne",
    "Betas",
    "Count",
    "Counts",
    "Fraction",
    "Positive",
    "Section",
    "Seed",
    "Text",
    "Texts",
    "list_as_tuple",
]


def list_as_tuple(value: object) -> object:
    """TOML has lists only; frozen settings hold tuples."""
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
AtLeastZero = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
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
