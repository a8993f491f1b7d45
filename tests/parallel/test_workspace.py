from __future__ import annotations

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.workspace import StageRole, Workspace

FEW, MANY = 7, 128


@pytest.mark.parametrize(
    ("travels", "samples", "whole"),
    [(False, FEW, True), (False, MANY, False), (False, MANY - 1, True), (True, FEW, False), (True, MANY, False)],
)
def test_what_lies_side_by_side(travels: bool, samples: int, whole: bool) -> None:
    splits = split_layers(MLP([5, 6, 4]).layers, "columns", 1, 0)
    workspace = Workspace(splits, 1, 0, MANY, np.float32, StageRole(), travels=travels)
    for layer in workspace.arrays(samples).layers:
        for name in ("activation", "y", "dy", "dz", "scratch"):
            array = getattr(layer, name)
            assert array.shape[1] == samples
            assert (array.flags.f_contiguous, array.flags.c_contiguous) == (whole, not whole), name


@pytest.mark.parametrize("travels", [False, True])
def test_arrays_that_are_alive_together_share_no_memory(travels: bool) -> None:
    splits = split_layers(MLP([5, 6, 4, 3]).layers, "columns", 1, 0)
    workspace = Workspace(splits, 1, 0, MANY, np.float64, StageRole(), travels=travels)
    for samples in (1, FEW, MANY):
        layers = workspace.arrays(samples).layers
        kept = [layers[0].x, *(layer.y for layer in layers)]
        for place, layer in enumerate(layers):
            alive = [*kept, layer.dy] + ([] if layer.dx is None else [layer.dx])
            for number, array in enumerate(alive):
                assert not any(np.shares_memory(array, other) for other in alive[number + 1 :]), (samples, place)
            assert not any(np.shares_memory(layer.scratch, array) for array in (*kept, layer.dy))
