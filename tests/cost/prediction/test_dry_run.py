"""Dry runs: arrays that take no memory, and the collectives that layers of them record."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.cost.prediction.memory import dry_array, largest_memory, layer_collectives
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.dense import split_layers
from hybridnn.pipeline.layout import Layout


def test_views_of_a_dry_array_have_the_shapes_and_bytes_of_a_real_one() -> None:
    dry = dry_array((3 * 10**9, 4), np.float32)
    assert dry.nbytes == 48 * 10**9
    views = (dry.T, dry[5:1005], dry.reshape(-1), dry.reshape(4, -1).T, dry[:, None, 2:])
    shapes = [(4, 3 * 10**9), (1000, 4), (12 * 10**9,), (3 * 10**9, 4), (3 * 10**9, 1, 2)]
    assert [view.shape for view in views] == shapes
    assert all(np.shares_memory(view, dry) for view in views)
    dry[...] = 1  # at once
    assert dry[0, 0] == 0


@pytest.mark.parametrize("stages", [((1, 1),), ((4, 2),), ((1, 2), (2, 1))])
def test_a_network_larger_than_the_memory_of_the_machine_needs_none(stages: tuple[tuple[int, int], ...]) -> None:
    workload = Workload(MLP([10**4, 10**6, 10**6, 10]), 1000, 100)
    tracemalloc.start()
    memory = largest_memory(workload, Layout.uniform(stages, 3))
    assert tracemalloc.get_traced_memory()[1] < 2e7
    tracemalloc.stop()
    assert memory.total > 1e12


@pytest.mark.parametrize("residual", [False, True])
def test_collectives_of_layers(residual: bool) -> None:
    layers = MLP([6, 6, 6, 6], residual=residual).layers[:2]
    first, second = split_layers(layers, "alternating", 2, 0)
    (whole,) = split_layers(layers[1:], "columns", 2, 0)
    assert layer_collectives(first, 2, 4) == ((), ())  # its rows stay where they are, and inputs have no gradient
    gathered = (("allgather", 24),) if residual else ()  # the residual sum needs all rows of the input
    assert layer_collectives(second, 2, 4) == ((("allreduce", 24), *gathered), ())
    assert layer_collectives(whole, 2, 8) == ((("allgather", 48),), (("allreduce", 48),))
    (alone,) = split_layers(layers[1:], "columns", 1, 0)
    assert layer_collectives(alone, 1, 4) == ((), ())
