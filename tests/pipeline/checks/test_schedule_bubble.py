"""Bubble of a schedule: known formulas."""

from __future__ import annotations

import pytest

from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble
from hybridnn.pipeline.layout import Layout


def _layout(stages: int, method: str, microbatches: int = 1, chunks: int = 1, *, merges: bool = False) -> Layout:
    layers = (1,) * (stages * chunks)
    return Layout(((1, 1),) * stages, layers, method=method, microbatches=microbatches, chunks=chunks, merges=merges)


@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 4), (3, 12)])
def test_bubble_of_a_flushed_pipeline(method: str, stages: int, microbatches: int) -> None:
    """(K - 1) / (M + K - 1), for every number of minibatches; less if later stages merge weight gradients in it."""
    filling = stages - 1
    for merges, expected in (
        (False, filling / (microbatches + filling)),
        (True, 2 * filling / (3 * microbatches + 2 * filling)),
    ):
        layout = _layout(stages, method, microbatches, merges=merges)
        for minibatches in (1, 100):
            assert schedule_bubble(layout, minibatches) == pytest.approx(expected)


@pytest.mark.parametrize(("method", "share"), [("sequential", 3 / 4), ("pipedream", 3 / 103)])
def test_bubble_of_many_minibatches(method: str, share: float) -> None:
    """One minibatch at a time leaves K - 1 of K stages idle; without a flush the pipeline fills and drains once."""
    assert schedule_bubble(_layout(4, method), 100) == pytest.approx(share)


def test_one_stage_has_no_bubble() -> None:
    assert schedule_bubble(Layout.uniform([(4, 2)], 3), 5) == 0
