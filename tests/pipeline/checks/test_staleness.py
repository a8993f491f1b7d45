"""The staleness audit against the definitions of the methods."""

from __future__ import annotations

import pytest

from hybridnn.pipeline.checks.lint import audit
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule

# Per method: staleness of minibatch t at stage k of K (k, t from 0), and whether both passes agree.
STALE = {
    "ddg": (lambda K, k, t: min(t, K - 1 - k), lambda K, k, t: True),
    "pipedream": (lambda K, k, t: min(t, K - 1 - k), lambda K, k, t: True),
    "fr": (lambda K, k, t: min(t, K - 1 - k), lambda K, k, t: min(t, K - 1 - k) == 0),
    "vanilla": (lambda K, k, t: min(t, K - 1 - k), lambda K, k, t: min(t, K - 1 - k) == 0),
    "pipedream-2bw": (lambda K, k, t: min(t, 1), lambda K, k, t: True),
    "spectrain": (lambda K, k, t: min(t, K - 1 - k), lambda K, k, t: True),
}


@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("minibatches", [1, 2, 3, 9])
@pytest.mark.parametrize("method", STALE)
def test_asynchronous_methods(method: str, stages: int, minibatches: int) -> None:
    staleness, consistent = STALE[method]
    microbatches = stages if METHODS[method].fills_pipeline else 1
    rows = audit(make_schedule(method, stages=stages, minibatches=minibatches, microbatches=microbatches))
    assert [(row.stage, row.minibatch) for row in rows] == [(k, t) for k in range(stages) for t in range(minibatches)]
    for row in rows:
        assert row.applied_at == row.minibatch
        assert row.staleness == staleness(stages, row.stage, row.minibatch)
        assert row.consistent == consistent(stages, row.stage, row.minibatch)


def test_vertical_sync() -> None:
    """Every stage is as stale as the first."""
    rows = audit(make_schedule("pipedream", stages=4, minibatches=7, vertical_sync=True))
    assert all(row.staleness == min(row.minibatch, 3) and row.consistent for row in rows)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.exact])
def test_exact_methods(method: str) -> None:
    size = {"microbatches": 6} if METHODS[method].cuts_minibatches else {}
    if METHODS[method].chunked:
        size["chunks"] = 2
    rows = audit(make_schedule(method, stages=3, minibatches=4, **size))
    assert len(rows) == 12
    assert all(row.staleness == 0 and row.consistent for row in rows)
    assert all(row.forward == row.backward == (row.minibatch, 0) for row in rows)


def test_backward_of_features_replay_is_current() -> None:
    rows = audit(make_schedule("fr", stages=4, minibatches=9))
    assert all(row.backward.version == row.applied_at for row in rows)


def test_evaluation_updates_nothing() -> None:
    assert audit(forward_only(3, 4)) == ()
