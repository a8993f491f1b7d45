"""Sentences about synthetic predictions."""

from __future__ import annotations

from hybridnn.cost.plan import reason_sentence
from hybridnn.cost.prediction.predict import Prediction
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.pipeline.layout import Layout


def prediction(
    batch: int, computing: float, communication: float = 0.0, bubble: float = 0.0, overhead: float = 0.0, model: int = 1
) -> Prediction:
    """A step of so many milliseconds of each part."""
    breakdown = TimeBreakdown(computing / 1e3, communication / 1e3, bubble / 1e3, overhead / 1e3)
    return Prediction(
        layout=Layout(((batch, model),), (3,)),
        seconds_per_step=(computing + communication + bubble + overhead) / 1e3,
        seconds_per_epoch=1.0,
        breakdown=breakdown,
        bytes_per_step=1,
        memory_bytes=1,
        instructions={},
    )


def test_reason_sentences() -> None:
    best, other = prediction(4, 2.0, 1.0), prediction(2, 1.8, 2.0, model=2)
    wins = "batch 4 wins over batch 2 x model 2 (columns) by 800 µs a step"
    assert reason_sentence(best, other) == f"{wins}: 1 ms less communication, 200 µs more computing."
    assert "only process grid" in reason_sentence(best, None)
    assert "equally fast" in reason_sentence(best, prediction(2, 2.0, 1.0, model=2))
