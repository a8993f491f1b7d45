"""The staleness audit against the definitions of the methods."""

from __future__ import annotations

from itertools import product

import pytest

from hybridnn.pipeline.checks.lint import audit
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from reference.schedules import small

CONSISTENT = ("ddg", "pipedream", "pipedream-vsync", "pipedream-2bw", "spectrain", "lwp", "pipemare")
"""Methods whose backward pass reads the version of its forward pass, or that aim at one version by predictions."""


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.exact])
def test_asynchronous_methods(method: str) -> None:
    """Minibatch t is min(t, K-1-k) updates old at stage k of K, min(t, 1) with two versions, min(t, K-1) with one."""
    for stages, minibatches in product((1, 2, 3, 5), (1, 2, 3, 9)):
        microbatches = stages if METHODS[method].fills_pipeline else 1
        rows = audit(make_schedule(method, stages=stages, minibatches=minibatches, microbatches=microbatches))
        assert [(row.stage, row.minibatch) for row in rows] == list(product(range(stages), range(minibatches)))
        for row in rows:
            assert row.applied_at == row.minibatch
            most = {"pipedream-2bw": 1, "pipedream-vsync": stages - 1}.get(method, stages - 1 - row.stage)
            assert row.staleness == min(row.minibatch, most)
            assert row.consistent == (method in CONSISTENT or row.staleness == 0)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.exact])
def test_exact_methods(method: str) -> None:
    rows = audit(small(method, 3, 4))
    assert len(rows) == 12
    assert all(row.staleness == 0 and row.consistent for row in rows)
    assert all(row.forward == row.backward == (row.minibatch, 0) for row in rows)


def test_evaluation_updates_nothing() -> None:
    assert audit(forward_only(3, 4)) == ()
