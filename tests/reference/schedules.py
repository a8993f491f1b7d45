"""Small schedules of every method, with microbatches and chunks where the method has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule

__all__ = ["forms", "small"]


def small(method: str, stages: int, minibatches: int = 3, chunks: int = 2, **options: Any) -> Schedule:
    """A schedule with two microbatches per stage, and with `chunks` chunks, if the method has them."""
    kind = METHODS[method]
    cut = {"microbatches": 2 * stages if kind.cuts_minibatches else 1, "chunks": chunks if kind.chunked else 1}
    return make_schedule(method, stages=stages, minibatches=minibatches, **{**cut, **options})


def forms(method: str) -> Iterator[dict[str, Any]]:
    """The options of a method: where weight gradients are computed, and which versions are read."""
    yield {}
    if not METHODS[method].placed_weight_gradients:
        yield {"weight_grad": "merged"}
