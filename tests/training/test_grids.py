"""Every process grid trains the network that one plain process trains: the reference, to 1e-10 in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.comm.group import Group
from hybridnn.errors import GridError
from reference.cases import Case, assert_arrays_close, check_against_reference, given, make_trainer, reference, run
from reference.sweeps import DISTRIBUTIONS, SPLITS, grid_shapes, layouts, sizes_for, trainings

RANKS = [2, 3, 4, 6, 8]

GROUP_METHODS = (
    "allreduce",
    "iallreduce",
    "allgather_rows",
    "iallgather_rows",
    "reduce_scatter_rows",
    "ireduce_scatter_rows",
    "broadcast",
    "ibroadcast",
    "scatter_rows",
    "iscatter_rows",
    "gather_rows",
)


def grids(comm: Any) -> list[ProcessGrid]:
    return [ProcessGrid(comm, batch=batch, model=model) for batch, model in grid_shapes(comm.size)]


@pytest.mark.mpi(ranks=RANKS)
def test_every_layout_trains_as_the_reference(comm: Any) -> None:
    for grid in grids(comm):
        for case in layouts((grid.batch, grid.model)):
            check_against_reference(case, grid)


@pytest.mark.mpi(ranks=RANKS)
def test_every_optimizer_and_task_trains_as_the_reference(comm: Any) -> None:
    for grid in grids(comm):
        for case in trainings((grid.batch, grid.model)):
            check_against_reference(case, grid)


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_training_goes_on_where_it_stopped(comm: Any, shuffle: bool) -> None:
    grid = ProcessGrid(comm, model=comm.size if comm.size < 4 else 2)
    case = Case(sizes=(5, 13, 9, 11, 8), optimizer="adam")
    once, twice = (make_trainer(case, grid, shuffle=shuffle) for _ in range(2))
    once.fit(*given(case, grid), epochs=3)
    twice.fit(*given(case, grid), epochs=1)
    twice.fit(*given(case, grid), epochs=2)
    assert_same(once.weights(), twice.weights())
    assert [record.epoch for record in twice.history.epochs] == [1, 2, 3]


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_same_layout_twice_is_bit_identical(comm: Any, overlap: bool) -> None:
    for grid in grids(comm):
        for split in SPLITS:
            case = Case(
                sizes_for(grid.model, split, True, True), residual=True, optimizer="adamw", model_split=split, overlap=overlap
            )
            first, second = run(case, grid, "float32"), run(case, grid, "float32")
            assert_same(first.weights(), second.weights())
            for slot, arrays in first.optimizer_slots().items():
                assert_same(arrays, second.optimizer_slots()[slot])
            assert [r.train_loss for r in first.history.steps] == [r.train_loss for r in second.history.steps]


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert np.array_equal(array, b[name]), name


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_float32_stays_float32_in_memory_and_in_messages(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_messages(monkeypatch)
    for grid in grids(comm):
        for split, distribution in zip(SPLITS * 2, DISTRIBUTIONS * 2, strict=False):
            for classification in (True, False):
                check_dtypes(grid, split, distribution, classification, seen)


def check_dtypes(grid: ProcessGrid, split: str, distribution: str, classification: bool, seen: list[Any]) -> None:
    sizes = sizes_for(grid.model, split, False, classification)
    case = Case(sizes, classification, optimizer="adam", model_split=split, distribution=distribution, clip_norm=0.5)
    seen.clear()
    trainer = run(case, grid, "float32")
    expected = reference(case).weights
    sent = list(seen)
    arrays = [*trainer.weights().values(), *trainer.gradients().values(), trainer.predict(np.ones((3, sizes[0])))]
    arrays += [array for slot in trainer.optimizer_slots().values() for array in slot.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert_arrays_close(trainer.weights(), expected, str(case), tolerance=1e-3)
    # Exact sums of a few numbers (norms by layer, metrics, counts) are the only messages that may be wider.
    small = max(3, 2 * sizes[-1], len(sizes) - 1)
    for method, dtype, shape in sent:
        label = dtype == np.int64 and classification and method in ("scatter_rows", "iscatter_rows", "broadcast")
        assert dtype == np.float32 or label or np.prod(shape) <= small, f"{method} of {dtype} {shape}, {case}"
    if grid.size > 1:
        assert any(dtype == np.float32 for _, dtype, _ in sent)


def watch_messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Note method, dtype and shape of every array that any group is handed."""
    seen: list[tuple[str, Any, tuple[int, ...]]] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Group, *args: Any, **kwargs: Any) -> Any:
            arrays = [array for array in (*args, *kwargs.values()) if isinstance(array, np.ndarray)]
            seen.extend((name, array.dtype, array.shape) for array in arrays)
            return method(self, *args, **kwargs)

        return call

    for name in GROUP_METHODS:
        monkeypatch.setattr(Group, name, watched(name, getattr(Group, name)))
    return seen


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_more_model_ranks_than_outputs_is_refused_with_both_numbers(comm: Any) -> None:
    grid = ProcessGrid(comm, model=comm.size)
    with pytest.raises(GridError) as caught:
        Trainer(MLP([5, 8, comm.size - 1]), grid=grid)
    message = str(caught.value)
    assert f"{comm.size} model ranks" in message
    assert f"{comm.size - 1} outputs" in message


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:])
def test_sent_minibatches_need_data_on_rank_0_alone(comm: Any, distribution: str) -> None:
    for grid in grids(comm):
        case = Case(sizes=(5, 13, 7, 11, 4), distribution=distribution)
        x, y = given(case, grid)
        assert (x is None) == (grid.rank != 0)
        trainer = make_trainer(case, grid)
        trainer.fit(x, y, epochs=case.epochs, validation=(x, y))
        assert_arrays_close(trainer.weights(), reference(case).weights, f"{case} on {grid!r}")
        assert trainer.evaluate(x, y).samples == case.samples


@pytest.mark.mpi(ranks=[2, 4])
def test_weights_handed_in_are_split_and_come_back_whole(comm: Any) -> None:
    for grid in grids(comm):
        for split in SPLITS:
            case = Case(sizes_for(grid.model, split, False, True), model_split=split, seed=3)
            other = reference(Case(case.sizes, seed=8)).weights
            trainer = make_trainer(case, grid, initial_weights=other)
            assert_same(trainer.weights(), other)
            trainer.load_weights(reference(case).weights)
            assert_same(trainer.weights(), reference(case).weights)
