"""Calls of the student's functions of A7, and predictions of the library with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Function, Variant


def call_fit(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    units: dict[str, float] = inputs["units"]
    found = np.asarray(function(inputs["features"], inputs["seconds"]), np.float64)
    if found.shape != (len(units),):
        return {"shape": list(found.shape)}
    return {name: float(value) / unit for (name, unit), value in zip(units.items(), found.tolist(), strict=True)}


def call_counts(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    messages, nbytes, reduced = function(inputs["nbytes"], inputs["ranks"])
    return {"messages": float(messages), "bytes": float(nbytes), "reduced": float(reduced)}


def call_cuts(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    seconds, boundaries = list(inputs["seconds"]), list(inputs["boundaries"])
    counts = [int(layers) for layers in function(list(seconds), list(boundaries), inputs["stages"])]
    found: dict[str, Any] = {"stages": len(counts), "layers": sum(counts), "layers of the smallest stage": 1}
    if len(counts) != inputs["stages"] or sum(counts) != len(seconds) or min(counts) < 1:
        return {**found, "layers of the smallest stage": min(counts, default=0), "seconds of the slowest part": -1.0}
    return {**found, "seconds of the slowest part": slowest_part(variant, seconds, boundaries, counts)}


def call_grid(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    network = (list(inputs["widths"]), inputs["batch"], inputs["ranks"])
    (batch, model), seconds = function(*network, inputs["alpha"], inputs["beta"])
    return {"microseconds": float(seconds) * 1e6, "grid": f"{int(batch)} x {int(model)}"}


def stage_cost(seconds: Sequence[float], boundaries: Sequence[float], first: int, end: int, *, waits: bool) -> float:
    """Seconds of a stage with the boundaries at both of its ends, or of the slower of it and the boundary before."""
    own = float(sum(seconds[first:end]))
    before = boundaries[first - 1] if first else 0.0
    after = boundaries[end - 1] if end < len(seconds) else 0.0
    return before + own + after if waits else max(before, own)


def slowest_part(
    variant: Variant, seconds: Sequence[float], boundaries: Sequence[float], counts: Sequence[int]
) -> float:
    """Seconds of the slowest part of a pipeline."""
    ends = [0, *accumulate(counts)]
    waits = variant["messages"] == "waited for"
    return max(stage_cost(seconds, boundaries, first, end, waits=waits) for first, end in pairwise(ends))
