"""JSON that every reader accepts: what is not finite becomes null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["to_json"]


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write nested mappings, lists, tuples and scalars as JSON, with null for NaN and infinities."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
