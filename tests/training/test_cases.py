"""All trainings against the references, on ranks in this process and some under MPI, where no message is pickled."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.parallel.grid import fitting_grids
from hybridnn.training.config import DISTRIBUTIONS
from reference import network as net
from reference.cases import reference
from reference.core_cases import CORE_CASES
from reference.pipeline_cases import DELAYED_CASES, MOMENTUM, PipelineCase, exact_cases
from reference.training_cases import Grid, TrainingCase, check_training, run_training_case
from reference.training_list import all_cases


def swept() -> Iterator[object]:
    """All cases. Those of more than four ranks are slow, and every second pipeline of four: they take longest."""
    pipelines_of_four = 0
    for it in all_cases():
        is_slow = it.ranks > 4
        if it.ranks == 4 and isinstance(it.training, PipelineCase):
            pipelines_of_four += 1
            is_slow = pipelines_of_four % 2 == 0
        yield pytest.param(it, id=str(it), marks=[pytest.mark.slow] * is_slow)


@pytest.mark.sweep
@pytest.mark.parametrize("case", swept())
def test_training_equals_the_reference(case: TrainingCase) -> None:
    run_training_case(case)


def test_cases_with_a_limit_of_the_norm_are_clipped() -> None:
    """Else a training without clipping would pass."""
    gradients = reference(replace(MOMENTUM, clip_norm=0.05)).gradients
    assert net.norm(gradients.values()) == pytest.approx(0.05)


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


class PickledError(Exception):
    """Somebody pickled a message."""


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise PickledError


@pytest.mark.mpi(ranks=[4])
def test_no_message_of_training_is_pickled(comm: MPI.Intracomm) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 5
    grids = [ProcessGrid(comm, batch=batch, model=model) for batch, model in fitting_grids(comm.size)]
    MPI.pickle.__init__(_refuse, _refuse)
    try:
        with pytest.raises(PickledError):
            MPI.COMM_SELF.bcast("the trap works")
        for grid, distribution in product(grids, DISTRIBUTIONS):
            trainer = Trainer(MLP([4, 8, 5]), SGD(0.1), grid=grid, batch_size=7, distribution=distribution)
            trainer.fit(x, y, epochs=1, validation=(x, y))
            trainer.predict(x)
            trainer.weights()
    finally:
        MPI.pickle.__init__()  # as it was made; handing back its own functions crashes a later message
