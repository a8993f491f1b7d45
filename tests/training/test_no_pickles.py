"""Training sends buffers only: it works while mpi4py cannot pickle."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.parallel.grid import fitting_grids
from hybridnn.training.config import DISTRIBUTIONS


class PickledError(Exception):
    """Somebody pickled a message."""


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise PickledError


@pytest.mark.mpi(ranks=[4])
def test_no_message_of_training_is_pickled(comm: MPI.Intracomm) -> None:
    from mpi4py import MPI as mpi  # noqa: N811 - a module, named as one

    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 5
    mpi.pickle.__init__(_refuse, _refuse)
    try:
        with pytest.raises(PickledError):
            mpi.COMM_SELF.bcast("the trap works")
        for batch, model in fitting_grids(comm.size):
            for distribution in DISTRIBUTIONS:
                grid = ProcessGrid(comm, batch=batch, model=model)
                trainer = Trainer(MLP([4, 8, 5]), SGD(0.1), grid=grid, batch_size=7, distribution=distribution)
                trainer.fit(x, y, epochs=1, validation=(x, y))
                trainer.predict(x)
                trainer.weights()
    finally:
        mpi.pickle.__init__()  # as it was made; handing back its own functions crashes a later message
