"""Errors of one rank are raised on all ranks, so that no rank waits for one that has stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.checkpoints import file_io
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.comm.agreement import agree, name_hosts
from hybridnn.errors import DataError, HybridnnError, NonFiniteLossError
from reference.ranks import on_nodes, this_rank

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3


def trainer_on(comm: MPI.Intracomm, **options: Any) -> Trainer:
    return Trainer(MLP([4, 6, 3]), grid=ProcessGrid(comm), batch_size=5, **options)


@pytest.mark.in_process(ranks=[1, 2])
def test_weights_that_overflow_in_the_last_step_stop_the_run(comm: MPI.Intracomm) -> None:
    trainer = Trainer(MLP([4, 6, 3]), SGD(lr=1e38), grid=ProcessGrid(comm), batch_size=12)
    with pytest.raises(NonFiniteLossError, match=r"the weights are no longer finite after step 1;.*layer 0"):
        trainer.fit(X * 1e3, Y, epochs=1, validation=(X, Y))


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


NODES = (0, 0, 1, 2)


def named_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: f"n{NODES[this_rank()]}")


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(
    ("failing", "where"), [({2}, "on n1: "), ({1, 3}, "on n0, n2: "), ({0, 2, 3}, ""), ({0, 1, 2}, "on n0, n1: ")]
)
def test_an_error_of_some_nodes_names_them(comm, failing, where, monkeypatch) -> None:
    """Of a node that reads by one of its ranks, this rank counts."""
    named_nodes(monkeypatch)

    def read() -> int:
        if comm.rank in failing:
            raise DataError("there is no such file")
        return comm.rank

    world = ProcessGrid(comm).world
    with pytest.raises(HybridnnError) as caught:
        agree(world, read, names_nodes=True)
    assert str(caught.value) == f"{where}there is no such file"
    assert isinstance(caught.value, DataError) == (comm.rank in failing)
    with pytest.raises(HybridnnError, match=r"^there is no such file$"):
        agree(world, read)


def test_of_many_hosts_the_first_are_named() -> None:
    assert name_hosts(["n1", "n2"]) == "n1, n2"
    assert name_hosts([f"n{number}" for number in range(10)]) == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"


@pytest.mark.in_process(ranks=[4])
def test_folders_that_not_all_nodes_see_are_refused_and_stay_as_they_are(comm, mpi_tmp_path, monkeypatch) -> None:
    named_nodes(monkeypatch)
    blind = {2}
    exists = Path.exists
    # The mark that rank 0 makes: other ranks of its node need not look.
    monkeypatch.setattr(
        Path, "exists", lambda path: exists(path) and not (this_rank() in blind and path.name.startswith("."))
    )
    monkeypatch.setattr(file_io, "VISIBLE_SECONDS", 0.05)
    grid = ProcessGrid(on_nodes(comm, NODES))
    absent = mpi_tmp_path / "not" / "yet"
    for folder in (mpi_tmp_path, absent):
        assert file_io.nodes_without(folder, grid.world, grid.node_group) == ["n1"]
    trainer = Trainer(MLP([4, 6, 3]), grid=grid, batch_size=5)
    with pytest.raises(HybridnnError, match=r"^checkpoint folder .*yet: must be on .*; it is not seen by n1$"):
        checkpoint_writer(trainer, absent, "numbers")
    comm.Barrier()
    blind.clear()
    comm.Barrier()
    assert file_io.nodes_without(absent, grid.world, grid.node_group) == []
    checkpoint_writer(trainer, absent, "numbers")
    comm.Barrier()
    assert not list(mpi_tmp_path.iterdir())


@pytest.mark.in_process(ranks=[4])
def test_on_one_node_no_folder_is_examined(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    grid = ProcessGrid(comm)
    before = len(grid.recorder.events), mpi_tmp_path.stat().st_mtime_ns
    assert file_io.nodes_without(mpi_tmp_path, grid.world, grid.node_group) == []
    assert (len(grid.recorder.events), mpi_tmp_path.stat().st_mtime_ns) == before
