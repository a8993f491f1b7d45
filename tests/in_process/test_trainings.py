"""Trainings on ranks of one process agree with one rank and with the serial references, to 1e-10 in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.in_process import run_ranks
from reference.cases import check_against_reference
from reference.pipeline_cases import (
    DELAYED_CASES,
    MOMENTUM,
    PipelineCase,
    check_pipelined,
    exact_cases,
    run_pipelined,
    short_training,
)
from reference.sweeps import grids, layouts, pipelined_grids, trainings

METHODS = {**exact_cases(1), **DELAYED_CASES}


@pytest.mark.in_process(ranks=[1, 5, 7])
def test_every_grid_trains_as_the_reference(comm: Any) -> None:
    """These and more on all other numbers of ranks up to 8: ``tests/training/test_grids.py``."""
    for grid in grids(comm):
        shape = grid.batch, grid.model
        for case in (*islice(layouts(shape), 0, None, 5), *islice(trainings(shape), 0, None, 3)):
            check_against_reference(case, grid)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.in_process(ranks=[2, 3, 4, 5, 6, 7, 8])
def test_every_method_trains_as_its_replay_on_every_grid(comm: Any, method: str) -> None:
    """Two epochs on up to four ranks and on 2 x 2 x 2, one epoch on the others."""
    for grid in pipelined_grids(comm):
        it = {**exact_cases(grid.pipeline), **DELAYED_CASES}[method]
        if comm.size > 4 and grid.shape != (2, 2, 2):
            it = replace(it, case=short_training(it.method, grid.pipeline))
        check_pipelined(it, grid)


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_every_interleaving_gives_the_same_bits(seeds: int) -> None:
    def program(comm: Any) -> dict[str, Any]:
        return run_pipelined(PipelineCase("1f1b", MOMENTUM), ProcessGrid(comm, pipeline=2, batch=2)).weights()

    first = run_ranks(4, program).results[0]
    for seed in range(seeds):
        again = run_ranks(4, program, order=seed, sends=("rendezvous", "eager")[seed % 2]).results[0]
        assert all(np.array_equal(again[name], first[name]) for name in first), seed
