"""Trainings of ranks under MPI, with its messages and windows, equal the serial references."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mpi4py import MPI

from reference.core_cases import CORE_CASES
from reference.pipeline_cases import DELAYED_CASES, MOMENTUM, exact_cases
from reference.training_cases import Grid, TrainingCase, check_training


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_core_cases(comm: MPI.Intracomm) -> None:
    """Every axis, replicas of a node and of a rank, and every pipeline method."""
    for it in CORE_CASES.values():
        if it.ranks == comm.size:
            check_training(it, comm)


@pytest.mark.slow
@pytest.mark.mpi(ranks=[6])
def test_all_three_axes(comm: MPI.Intracomm) -> None:
    for name in ("1f1b", "interleaved"):
        it = replace(exact_cases(2)[name], case=MOMENTUM)
        check_training(TrainingCase(6, Grid(stages=((2, 2), (1, 2))), it), comm)
    for name in ("pipedream", "spectrain"):
        check_training(TrainingCase(6, Grid(stages=((2, 2), (1, 2))), DELAYED_CASES[name]), comm)
