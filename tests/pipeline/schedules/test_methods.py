"""Schedules of computations alone."""

from __future__ import annotations

import pytest

from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, ReceiveActivations, SendActivations
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_without_messages_the_computations_are_the_same(method: str, stages: int) -> None:
    kind = METHODS[method]
    size = {
        "stages": stages,
        "minibatches": 3,
        "microbatches": 2 * stages if kind.cuts_minibatches else 1,
        "chunks": 1 + kind.chunked,
    }
    placed, bare = make_schedule(method, **size), make_schedule(method, **size, messages=False)
    for stage in range(stages):
        expected = [item for item in placed.orders[stage] if isinstance(item, COMPUTATIONS)]
        assert [item for item in bare.orders[stage] if isinstance(item, COMPUTATIONS)] == expected
        assert kind.placed_messages or len(bare.orders[stage]) == len(expected)
    has_messages = any(isinstance(item, SendActivations | ReceiveActivations) for item in placed.orders[0])
    assert has_messages == (stages > 1)
