"""Layout and disjointness of the arrays of a workspace."""

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.parallel.dense import split_layers
from hybridnn.parallel.workspace import StageRole, Workspace

FEW, MANY = 7, 128


@pytest.mark.parametrize(
    ("features_contiguous", "dtype", "samples", "by_sample"),
    [
        (False, "float64", FEW, True),
        (False, "float64", MANY, False),
        (False, "float64", MANY - 1, True),
        (False, "float32", FEW, False),
        (True, "float64", FEW, False),
        (True, "float64", MANY, False),
    ],
)
def test_contiguous_axis(features_contiguous: bool, dtype: str, samples: int, by_sample: bool) -> None:
    shards = split_layers(MLP([5, 6, 4]).layers, "columns", 1, 0)
    workspace = Workspace(shards, MANY, dtype, StageRole(), features_contiguous=features_contiguous)
    for layer in workspace.arrays(samples).layers:
        for name in ("activation", "y", "dy", "dz", "scratch"):
            array = getattr(layer, name)
            assert array.shape[1] == samples
            assert (array.flags.f_contiguous, array.flags.c_contiguous) == (by_sample, not by_sample), name


@pytest.mark.parametrize("features_contiguous", [False, True])
def test_arrays_in_use_together_share_no_memory(features_contiguous: bool) -> None:
    shards = split_layers(MLP([5, 6, 4, 3]).layers, "columns", 1, 0)
    workspace = Workspace(shards, MANY, np.float64, StageRole(), features_contiguous=features_contiguous)
    for samples in (1, FEW, MANY):
        layers = workspace.arrays(samples).layers
        stored = [layers[0].x, *(layer.y for layer in layers)]
        for index, layer in enumerate(layers):
            used = [*stored, layer.dy] + ([] if layer.dx is None else [layer.dx])
            for number, array in enumerate(used):
                assert not any(np.shares_memory(array, other) for other in used[number + 1 :]), (samples, index)
            assert not any(np.shares_memory(layer.scratch, array) for array in (*stored, layer.dy))
