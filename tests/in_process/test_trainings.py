"""Trainings on ranks of one process are those of one rank and of the serial replays, to 1e-10 in float64."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.in_process import run_ranks
from reference.cases import check_against_reference
from reference.pipeline_cases import DELAYED_CASES, MOMENTUM, PipelineCase, check_pipelined, exact_cases, run_pipelined
from reference.sweeps import grids, layouts, trainings

METHODS = {**exact_cases(1), **DELAYED_CASES}


@pytest.mark.in_process(ranks=[1, 5, 7])
def test_every_grid_trains_as_the_reference(comm: Any) -> None:
    """These and more on all other numbers of ranks up to 8: ``training/test_grids.py``."""
    for grid in grids(comm):
        shape = grid.batch, grid.model
        for case in (*islice(layouts(shape), 0, None, 5), *islice(trainings(shape), 0, None, 3)):
            check_against_reference(case, grid)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.in_process(ranks=[2, 3, 4])
def test_every_method_trains_as_its_replay(comm: Any, method: str) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    check_pipelined({**exact_cases(comm.size), **DELAYED_CASES}[method], grid)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.in_process(ranks=[8])
def test_every_method_trains_as_its_replay_on_all_three_axes(comm: Any, method: str) -> None:
    check_pipelined({**exact_cases(2), **DELAYED_CASES}[method], ProcessGrid(comm, pipeline=2, batch=2, model=2))


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_every_interleaving_gives_the_same_bits(seeds: int) -> None:
    def program(comm: Any) -> dict[str, Any]:
        return run_pipelined(PipelineCase("1f1b", MOMENTUM), ProcessGrid(comm, pipeline=2, batch=2)).weights()

    first = run_ranks(4, program).results[0]
    for seed in range(seeds):
        again = run_ranks(4, program, order=seed, sends=("rendezvous", "eager")[seed % 2]).results[0]
        assert all(np.array_equal(again[name], first[name]) for name in first), seed
