"""Ranks that share a replica train what one process trains, on one node and on several."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from time import sleep
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.parallel import nodes
from hybridnn.parallel.model_chunk import ModelChunk, PrivateReplica
from hybridnn.parallel.shared_replica import SharedReplica
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, assert_arrays_same, data, local_data, make_trainer, reference
from reference.pipeline_cases import ADAM, DELAYED_CASES, check_pipelined
from reference.ranks import on_nodes, replace_on_this_rank, shared_mappings, this_rank
from reference.training_list import SHARED, WIDE


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_ranks_that_come_late_read_and_write_the_same(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank reads weights that are being written, or adds up gradients that are not there yet."""
    draw = Random(comm.rank)

    def late(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sleep(draw.choice((0, 0, 0.002)))
            return method(*args, **kwargs)

        return call

    for kind, names in (
        (ModelChunk, ("forward", "weight_gradient", "backward")),
        (SGD, ("update",)),
        (Adam, ("update",)),
    ):
        for name in names:
            monkeypatch.setattr(kind, name, late(getattr(kind, name)))
    if comm.size == 4:
        grid = ProcessGrid(comm, pipeline=2, batch=2)
        for name in ("pipedream", "pipedream-vsync", "spectrain", "fr"):
            check_pipelined(replace(DELAYED_CASES[name], case=replace(ADAM, shared_replicas=True)), grid)
        return
    for case in SHARED if comm.size == 2 else WIDE[:3]:
        # A record is a collective, which would synchronize the ranks.
        trainer = make_trainer(replace(case, shared_replicas=True), ProcessGrid(comm), log_every=10**6)
        trainer.fit(*data(case), epochs=case.epochs)
        assert_arrays_close(trainer.weights(), reference(case).weights, str(case))
        assert_arrays_close(trainer.gradients(), reference(case).gradients, str(case))


@pytest.mark.in_process(ranks=[2, 3])
def test_a_step_meets_twice_and_sends_nothing_but_the_loss(comm: MPI.Intracomm) -> None:
    grid, case = ProcessGrid(comm), Case(shared_replicas=True)
    trainer = make_trainer(case, grid)
    steps: list[Counter[tuple[str, int]]] = []
    seen = len(grid.recorder.events)

    def note(_: Any) -> None:
        nonlocal seen
        events = grid.recorder.events
        steps.append(Counter((event.name, event.nbytes) for event in events[seen:] if event.axis == "batch"))
        seen = len(events)

    trainer.fit(*data(case), epochs=1, callbacks=[Calling(on_step=note)])
    loss = 2 * (8 * (comm.size - 1) // comm.size)
    assert steps == [Counter({("allreduce", loss): 1, ("barrier", 0): 1})] * 4


@pytest.mark.in_process(ranks=[4])
def test_between_nodes_only_slices_travel(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(on_nodes(comm, (0, 0, 1, 1)))
    trainer = make_trainer(Case(shared_replicas=True), grid)
    sent = trainer.fit(*data(Case()), epochs=1).epochs[-1].bytes_sent / 4  # steps
    # Every one of four ranks sends its half of the gradients to one other, as all-reduces are counted.
    gradients = 8 * trainer.engine.chunks[0].layout.size
    assert sent == pytest.approx(4 * gradients / 2, rel=0.02)


@pytest.mark.in_process(ranks=[2, 4])
def test_a_checkpoint_is_read_once_per_node_and_goes_on_to_the_last_bit(comm, mpi_tmp_path, monkeypatch) -> None:
    grid = ProcessGrid(comm) if comm.size == 2 else ProcessGrid(on_nodes(comm, (0, 0, 0, 1)))
    case = Case(optimizer="adam", shared_replicas=True)
    first, second = (make_trainer(case, grid) for _ in range(2))
    first.fit(*local_data(case, grid), epochs=1)
    checkpoint_writer(first, mpi_tmp_path, "numbers").write(first.progress)
    found, problems = newest_valid(mpi_tmp_path, grid.world)
    assert not problems
    readers = []
    read = Checkpoint.read_into
    replace_on_this_rank(monkeypatch, Checkpoint, "read_into", lambda *these: (readers.append(1), read(*these)))
    second.restore(found.read_into, found.manifest.progress)
    assert len(readers) == (grid.node_group.rank == 0)
    assert second.step == first.step == 4
    assert_arrays_same(second.weights(), first.weights())
    for trainer in (first, second):
        trainer.fit(*local_data(case, grid), epochs=2)
    assert_arrays_same(second.weights(), first.weights())
    for slot, arrays in first.optimizer_slots().items():
        assert_arrays_same(second.optimizer_slots()[slot], arrays)
    with pytest.raises(HybridnnError, match="holds first, second of the optimizer"):
        make_trainer(replace(case, optimizer="plain"), grid).restore(found.read_into, found.manifest.progress)


@pytest.mark.mpi(ranks=[2])
def test_memory_is_given_back_and_taken_again(comm: MPI.Intracomm) -> None:
    grid, model = ProcessGrid(comm), MLP([64, 256, 64])
    gc.collect()
    Trainer(model, grid=grid, shared_replicas=True).free()  # frees what other tests have dropped
    before = shared_mappings()
    for is_freed in (True, True, False, False, True):
        trainer = Trainer(model, grid=grid, shared_replicas=True)
        taken = shared_mappings() - before
        # Weights, velocity and two gradients.
        assert taken == pytest.approx(4 * 4 * model.parameters, rel=0.1)
        if is_freed:
            trainer.free()
            assert shared_mappings() == before
        del trainer  # the next one frees what was not
        gc.collect()


@pytest.mark.mpi(ranks=[2])
def test_memory_that_a_rank_still_reads_is_not_freed(comm: MPI.Intracomm) -> None:
    """One rank has an array of a trainer that all have dropped."""
    grid, model = ProcessGrid(comm), MLP([64, 256, 64])
    trainer = Trainer(model, grid=grid, shared_replicas=True)
    weights = trainer.engine.chunks[0].weights[1:] if comm.rank == 1 else None
    expected = trainer.engine.chunks[0].weights[1:].copy()
    del trainer
    gc.collect()
    before = shared_mappings()
    Trainer(model, grid=grid, shared_replicas=True).free()
    assert shared_mappings() == before
    assert weights is None or np.array_equal(weights, expected)
    del weights
    Trainer(model, grid=grid, shared_replicas=True).free()
    assert shared_mappings() < before


@pytest.mark.in_process(ranks=[1, 2])
def test_what_cannot_be_is_refused_and_left_alone_by_default(comm, monkeypatch) -> None:
    def made(wanted: object, **axes: int) -> object:
        trainer = Trainer(MLP([8, 8, 4]), grid=ProcessGrid(comm, **axes), shared_replicas=wanted)
        return trainer.engine.chunks[0].replica

    apart = {"batch": 1, "model": comm.size}
    with pytest.raises(SettingError, match=r"^parallel.shared_replicas = True: no node .* group; 'auto' and false are"):
        made(True, **apart)
    assert isinstance(made("auto", **apart), PrivateReplica)
    with pytest.raises(SettingError, match=r"^parallel.shared_replicas = 1: must be 'auto', true or false$"):
        made(1)
    if comm.size == 1:
        return
    assert isinstance(made("auto"), SharedReplica)
    # Only one rank has too little room: all of them hear of it.
    monkeypatch.setattr(nodes, "free_shared_memory", lambda: 1000.0 if this_rank() else np.inf)
    assert isinstance(made("auto"), PrivateReplica)
    with pytest.raises(SettingError, match=r"\(/dev/shm\) has no room for 2,\d{3} bytes"):
        made(True)
