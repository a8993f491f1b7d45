"""A layout in words, as settings, and what it means for the training."""

from __future__ import annotations

from typing import Any

from hybridnn.cost.prediction.workload import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.pipeline.schedules.weight_policies import PREDICTED, STASHED

__all__ = ["layout_settings", "layout_words", "staleness"]


def layout_words(layout: Layout) -> str:
    """For example ``pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches``."""
    stages = len(layout.stages)
    widths = set(layout.stages)
    if len(widths) > 1:
        text = "stages " + " + ".join(f"{batch} x {model}" for batch, model in layout.stages)
    else:
        batch, model = layout.stages[0]
        axes = (("pipeline", stages), ("batch", batch), ("model", model))
        text = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one rank"
    if any(model > 1 for _, model in widths):
        text += f" ({layout.split})"
    if stages > 1:
        text += f", {layout.method}"
        text += f" with {layout.microbatches} microbatches" if layout.microbatches > 1 else ""
    return text + ("" if layout.overlap else ", without overlap")


def layout_settings(layout: Layout) -> dict[str, Any]:
    """The keys of ``[parallel]`` that choose a layout whose stages have one width, as plain values."""
    batch, model = layout.stages[0]
    keys: dict[str, Any] = {
        "pipeline": len(layout.stages),
        "batch": batch,
        "model": model,
        "model_split": layout.split,
    }
    if model > 1 or (batch > 1 and layout.sharing_ranks is None):
        keys["overlap"] = layout.overlap  # elsewhere it means nothing
    if layout.wire is not None:
        keys["wire_dtype"] = layout.wire.words.name
    if len(layout.stages) == 1:
        return keys
    return keys | {
        "method": layout.method,
        "microbatches": layout.microbatches,
        "chunks": layout.chunks,
        "partition": list(layout.layers),
        "vertical_sync": layout.vertical_sync,
        "weight_grad": "auto" if layout.merges or METHODS[layout.method].placed_weight_gradients else "per-microbatch",
    }


def staleness(layout: Layout) -> str:
    """How old the weights are that a gradient is computed with."""
    if layout.exact:
        return "exact"
    most = len(layout.stages) - 1
    updates = f"{most} update{'s' * (most > 1)}"
    if layout.vertical_sync:
        return f"stale by {updates}"
    policy = METHODS[layout.method].policy
    if policy is STASHED:
        return f"stale by up to {updates}"
    return "weights predicted" if policy is PREDICTED else "inconsistent"
