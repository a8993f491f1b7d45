"""Errors of one rank are raised on all ranks, so that no rank waits for one that has stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.errors import DataError, HybridnnError, NonFiniteLossError, SettingError

if TYPE_CHECKING:
    from mpi4py import MPI

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3


def trainer_on(comm: MPI.Intracomm, **options: Any) -> Trainer:
    return Trainer(MLP([4, 6, 3]), grid=ProcessGrid(comm), batch_size=5, **options)


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("distribution", ["scatter", "scatter-broadcast"])
def test_validation_samples_on_rank_0_only(comm: MPI.Intracomm, distribution: str) -> None:
    trainer = trainer_on(comm, distribution=distribution)
    first = comm.rank == 0
    history = trainer.fit(X if first else None, Y if first else None, epochs=1, validation=(X, Y) if first else None)
    assert history.epochs[-1].test_accuracy is not None


@pytest.mark.in_process(ranks=[2, 3])
def test_different_data_on_the_ranks_are_refused_on_all(comm: MPI.Intracomm) -> None:
    first = comm.rank == 0
    given: list[tuple[str, Any]] = [
        ("validation samples", lambda t: t.fit(X, Y, epochs=1, validation=(X, Y) if first else None)),
        ("target of a sample: rank 0 has a label", lambda t: t.fit(X, Y if first else np.eye(3)[Y], epochs=1)),
        ("number of samples: ", lambda t: t.fit(X[: 12 - comm.rank], Y[: 12 - comm.rank], epochs=1)),
        (r"samples: .*rank 0 has shape \(12, 4\)", lambda t: t.predict(X[: 12 - comm.rank])),
    ]
    for text, call in given:
        with pytest.raises(DataError, match=text):
            call(trainer_on(comm))
    comm.Barrier()


@pytest.mark.in_process(ranks=[1, 2])
def test_weights_that_overflow_in_the_last_step_stop_the_run(comm: MPI.Intracomm) -> None:
    from hybridnn import SGD

    trainer = Trainer(MLP([4, 6, 3]), SGD(lr=1e38), grid=ProcessGrid(comm), batch_size=12)
    with pytest.raises(NonFiniteLossError, match=r"the weights are no longer finite after step 1;.*layer 0"):
        trainer.fit(X * 1e3, Y, epochs=1, validation=(X, Y))


@pytest.mark.in_process(ranks=[1, 2])
def test_a_model_larger_than_memory_is_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(SettingError, match=r"model\.sizes .* do not fit this rank's memory"):
        Trainer(MLP([4, 10**8, 10**8, 3]), grid=ProcessGrid(comm))


@pytest.mark.in_process(ranks=[2, 3])
def test_an_invalid_argument_of_one_rank_is_refused_on_all(comm: MPI.Intracomm) -> None:
    last = comm.rank == comm.size - 1
    with pytest.raises(HybridnnError, match=r"samples of shape \(12, 3\).* the model takes \(samples, 4\)"):
        trainer_on(comm).predict(X[:, :3] if last else X)
    trainer = trainer_on(comm)
    weights = trainer.weights()
    if last:
        weights["layers.1.bias"] = np.zeros(7)
    with pytest.raises(HybridnnError, match=r"layers\.1\.bias has shape \(7,\), the model needs \(3,\)"):
        trainer.load_weights(weights)
    comm.Barrier()
