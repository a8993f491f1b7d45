"""Predicted memory and bytes sent, against the trainer."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.memory import data_bytes, dry_array, largest_memory, layer_collectives, stage_memory
from hybridnn.cost.prediction.predict import predict
from hybridnn.parallel.dense import split_layers
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from reference.machines import make_machine
from reference.ranks import on_nodes

MODEL = MLP([5, 14, 14, 14, 9, 14, 14, 14, 6], residual=True)
WIDE = MLP([40, 700, 700, 30], "tanh")
LARGE = MLP([12, 550, 550, 40, 5], residual=True)
PLAIN, MOMENTUM, ADAM = SGD(1e-3, momentum=0.0), SGD(1e-3), Adam(1e-3)


def check(
    grid: ProcessGrid, workload: Workload, *, split: str = "columns", shared: bool | str = "auto", **pipelining: Any
) -> None:
    """Train an epoch and compare every figure of every stage."""
    trainer = Trainer(
        workload.model,
        workload.optimizer,
        grid=grid,
        batch_size=workload.batch_size,
        dtype=workload.dtype,
        model_split=split,
        shared_replicas=shared,
        **pipelining,
    )
    random = np.random.default_rng(0)
    x = random.standard_normal((workload.samples, workload.model.sizes[0]), workload.dtype)
    targets = random.standard_normal((workload.samples, workload.model.sizes[-1]), workload.dtype)
    labels = np.arange(workload.samples) % workload.model.sizes[-1]
    trainer.fit(x, labels if workload.classification else targets, epochs=1)
    layout = trainer.layout
    task = "classification" if workload.classification else "regression"
    for stage, reported in enumerate(trainer.stage_memory(task)):
        assert stage_memory(workload, layout, stage) == reported, (layout, stage)


@pytest.mark.in_process(ranks=[1])
def test_one_rank(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    for optimizer in (PLAIN, MOMENTUM, ADAM):
        for dtype in ("float32", "float64"):
            check(grid, Workload(MODEL, 40, 13, dtype, optimizer))
    check(grid, Workload(MODEL, 40, 10**9))  # a minibatch of all samples
    check(grid, Workload(WIDE, 120, 60, classification=False))  # more samples than products are transposed for


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_batch_and_model_ranks(comm: MPI.Intracomm, batch: int) -> None:
    grid = ProcessGrid(comm, batch=batch, model=4 // batch)
    for split in ("columns", "alternating"):
        check(grid, Workload(MODEL, 40, 13, optimizer=ADAM), split=split)
        for shared in ("auto", False):
            check(grid, Workload(WIDE, 240, 101, classification=False), split=split, shared=shared)


PIPELININGS: list[dict[str, Any]] = [
    {"method": "sequential"},
    {"method": "gpipe", "microbatches": 3},
    {"method": "gpipe", "microbatches": 3, "weight_grad": "per-microbatch"},
    {"method": "1f1b", "microbatches": 5},
    {"method": "1f1b", "microbatches": 5, "weight_grad": "per-microbatch"},
    {"method": "zb-h1", "microbatches": 4},
    {"method": "ddg"},
    {"method": "fr"},
    {"method": "pipedream"},
    {"method": "pipedream-vsync"},
    {"method": "vanilla"},
    {"method": "spectrain"},
    {"method": "pipemare"},
]


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("pipelining", PIPELININGS, ids=lambda item: "-".join(map(str, item.values())))
def test_pipelines_of_every_method(comm: MPI.Intracomm, pipelining: dict[str, Any]) -> None:
    check(ProcessGrid(comm, pipeline=comm.size), Workload(MODEL, 60, 13), **pipelining)


@pytest.mark.in_process(ranks=[4])
def test_chunks_and_uneven_partitions(comm: MPI.Intracomm) -> None:
    grid, workload = ProcessGrid(comm, pipeline=comm.size), Workload(MODEL, 60, 13, "float64", classification=False)
    for method in ("interleaved", "zb-v", "hanayo"):
        check(grid, workload, method=method, microbatches=8)
    check(grid, workload, method="pipedream", partition=(5, 1, 1, 1))


@pytest.mark.in_process(ranks=[4])
def test_stages_of_several_ranks_and_of_unequal_shapes(comm: MPI.Intracomm) -> None:
    workload = Workload(MODEL, 60, 13, optimizer=ADAM)
    for batch, model in ((2, 1), (1, 2)):
        check(ProcessGrid(comm, pipeline=2, batch=batch, model=model), workload, method="1f1b", microbatches=3)
    gpipe, spectrain = {"split": "alternating", "method": "gpipe", "microbatches": 2}, {"method": "spectrain"}
    for stages, settings in (
        ([(2, 1), (1, 2)], gpipe),
        ([(1, 2), (2, 1)], spectrain),
        ([(3, 1), (1, 1)], {"method": "pipedream", "shared": False}),
        ([(3, 1), (1, 1)], gpipe),
        ([(1, 1), (1, 3)], gpipe),
        ([(1, 1), (2, 1), (1, 1)], spectrain),
        ([(1, 1), (2, 1), (1, 1)], {"method": "pipedream", "shared": False}),
    ):
        check(ProcessGrid(comm, stages=stages), workload, **settings)


@pytest.mark.in_process(ranks=[4])
def test_replicas_on_several_nodes(comm: MPI.Intracomm) -> None:
    for nodes in ((0, 0, 1, 1), (0, 0, 0, 1)):
        check(ProcessGrid(on_nodes(comm, nodes)), Workload(WIDE, 240, 101, optimizer=ADAM))


def test_the_largest_memory_is_that_of_the_widest_layers() -> None:
    workload = Workload(MLP([4, 4, 400, 400, 4]), 100, 10)
    layout = Layout.uniform([(1, 1)] * 2, 4)
    assert largest_memory(workload, layout) == stage_memory(workload, layout, 1)
    assert stage_memory(workload, layout, 1).total > 3 * 4 * 400 * 400  # weights, gradients, velocity


def test_one_copy_of_the_data_counts_inputs_and_targets() -> None:
    model = MLP([6, 10, 3])
    assert data_bytes(Workload(model, 100, 10)) == 100 * (6 * 4 + 8)
    assert data_bytes(Workload(model, 100, 10, "float64", classification=False)) == 100 * (6 + 3) * 8


@pytest.mark.in_process(ranks=[3])
def test_layers_with_fewer_outputs_than_model_ranks(comm: MPI.Intracomm) -> None:
    workload = Workload(MLP([5, 14, 2, 2, 1], residual=True), 60, 13, classification=False, optimizer=ADAM)
    for split in ("columns", "alternating"):
        check(ProcessGrid(comm, model=3), workload, split=split)
    check(ProcessGrid(comm, stages=[(1, 2), (1, 1)]), workload, method="pipedream")


def test_views_of_a_dry_array_have_the_shapes_and_bytes_of_a_real_one() -> None:
    dry = dry_array((3 * 10**9, 4), np.float32)
    assert dry.nbytes == 48 * 10**9
    views = (dry.T, dry[5:1005], dry.reshape(-1), dry.reshape(4, -1).T, dry[:, None, 2:])
    shapes = [(4, 3 * 10**9), (1000, 4), (12 * 10**9,), (3 * 10**9, 4), (3 * 10**9, 1, 2)]
    assert [view.shape for view in views] == shapes
    assert all(np.shares_memory(view, dry) for view in views)
    dry[...] = 1  # at once
    assert dry[0, 0] == 0


@pytest.mark.parametrize("stages", [((1, 1),), ((1, 2), (2, 1))])
def test_a_network_larger_than_the_memory_of_the_machine_needs_none(stages: tuple[tuple[int, int], ...]) -> None:
    workload = Workload(MLP([10**4, 10**6, 10**6, 10]), 1000, 100)
    tracemalloc.start()
    memory = largest_memory(workload, Layout.uniform(stages, 3))
    assert tracemalloc.get_traced_memory()[1] < 2e7
    tracemalloc.stop()
    assert memory.total > 1e12


@pytest.mark.parametrize("residual", [False, True])
def test_collectives_of_layers(residual: bool) -> None:
    layers = MLP([6, 6, 6, 6], residual=residual).layers[:2]
    first, second = split_layers(layers, "alternating", 2, 0)
    (whole,) = split_layers(layers[1:], "columns", 2, 0)
    assert layer_collectives(first, 2, 4) == ((), ())  # its rows stay where they are, and inputs have no gradient
    gathered = (("allgather", 24),) if residual else ()  # the residual sum needs all rows of the input
    assert layer_collectives(second, 2, 4) == ((("allreduce", 24), *gathered), ())
    assert layer_collectives(whole, 2, 8) == ((("allgather", 48),), (("allreduce", 48),))
    (alone,) = split_layers(layers[1:], "columns", 1, 0)
    assert layer_collectives(alone, 1, 4) == ((), ())


SIZES = [6, 12, 12, 12, 12, 12, 12, 12, 4]
NARROW = [6, 12, 2, 3, 12, 3, 2, 1]
BATCH_SIZE, STEPS = 24, 4


def check_bytes(
    comm: MPI.Intracomm, axes: dict[str, Any], *, residual: bool = False, sizes: list[int] = SIZES, **settings: Any
) -> int:
    """Train, and compare the bytes that all ranks have sent; returns them."""
    model = MLP(sizes, "relu", residual=residual)
    grid = ProcessGrid(comm, **axes)
    trainer = Trainer(model, SGD(lr=1e-3), grid=grid, batch_size=BATCH_SIZE, log_every=10**6, **settings)
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((STEPS * BATCH_SIZE, width)) for width in (sizes[0], sizes[-1]))
    sent = trainer.fit(x, y, epochs=1).epochs[-1].bytes_sent
    way = settings.get("distribution", "local")
    work = Workload(model, STEPS * BATCH_SIZE, BATCH_SIZE, classification=False, distribution=way)
    expected = predict(work, trainer.layout, make_machine()).bytes_per_step * STEPS
    if not trainer.layout.exact:  # the epoch ends with one broadcast of all its losses
        expected += 8 * STEPS * (comm.size - 1)
    # Each collective rounds down.
    assert sent == pytest.approx(expected, rel=0.01), (axes, settings)
    return sent


@pytest.mark.in_process(ranks=[2])
def test_two_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    check_bytes(comm, {"batch": 2})
    check_bytes(comm, {"batch": 2}, shared_replicas=False)
    check_bytes(comm, {"batch": 2}, shared_replicas=False, overlap=False)
    for split in ("columns", "alternating"):
        for residual in (False, True):
            check_bytes(comm, {"batch": 1, "model": 2}, residual=residual, model_split=split)
    for method in METHODS:
        check_bytes(comm, {"pipeline": 2, "batch": 1}, method=method)


@pytest.mark.in_process(ranks=[4])
def test_four_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    check_bytes(comm, {"batch": 2, "model": 2})
    for is_shared in (True, False):
        check_bytes(comm, {"batch": 2, "model": 2}, model_split="alternating", overlap=False, shared_replicas=is_shared)
    for way in ("scatter", "scatter-broadcast"):
        check_bytes(comm, {"batch": 2, "model": 2}, distribution=way)
    pipelines = ("gpipe", (2, 1)), ("interleaved", (1, 2)), ("hanayo", (1, 2)), ("fr", (1, 2)), ("spectrain", (2, 1))
    for method, axes in pipelines:
        check_bytes(comm, {"pipeline": 2, "batch": axes[0], "model": axes[1]}, method=method)
    check_bytes(comm, {"stages": [(3, 1), (1, 1)]})
    check_bytes(comm, {"stages": [(3, 1), (1, 1)]}, shared_replicas=False)
    # What goes between nodes: slices of the gradient.
    for nodes in ((0, 0, 1, 1), (0, 0, 0, 1)):
        check_bytes(on_nodes(comm, nodes), {})
    check_bytes(comm, {"stages": [(1, 1), (1, 3)]})


@pytest.mark.in_process(ranks=[4])
def test_layers_with_fewer_outputs_than_model_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    for split in ("columns", "alternating"):
        check_bytes(comm, {"model": 4}, sizes=NARROW, model_split=split)
        check_bytes(comm, {"batch": 2, "model": 2}, sizes=NARROW, model_split=split)
        check_bytes(comm, {"stages": [(1, 3), (1, 1)]}, sizes=NARROW, model_split=split)
