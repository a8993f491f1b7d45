"""Memory of a training, as counted by Python's tracer; steps allocate no large arrays."""

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.training import layout_choice
from hybridnn.training.records import StepRecord
from hybridnn.utils import memory
from reference.callbacks import Calling
from reference.cases import assert_arrays_close
from reference.network import Array
from reference.ranks import shared_mappings


@pytest.fixture(scope="module")
def modules_in_use() -> None:
    """Import what is imported on first use: modules take memory too."""
    model = MLP([16, 256, 256, 2])
    Trainer(model, batch_size=8).fit(*samples_of(model, 8, True), epochs=1)


@pytest.fixture
def tracing(modules_in_use: None) -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def samples_of(model: MLP, samples: int, classification: bool) -> tuple[Array, Array]:
    """Data as the trainer keeps them, so that it makes no copy."""
    random = np.random.default_rng(0)
    x = random.standard_normal((samples, model.sizes[0]), dtype=np.float32)
    if classification:
        return x, random.integers(0, model.sizes[-1], samples)
    return x, random.standard_normal((samples, model.sizes[-1]), dtype=np.float32)


def essentials(model: MLP, batch_size: int, slots: int, ranks: int = 1) -> int:
    """Bytes in float32 of parameters, gradients, optimizer state and activations, the inputs among them."""
    return 4 * ((2 + slots) * model.parameters + batch_size * sum(model.sizes)) // ranks


def peaks_of_steps(trainer: Trainer, x: Any, y: Any) -> list[int]:
    """Most bytes that were held beyond those held before, for every step but the first two."""
    before: list[int] = []
    peaks: list[int] = []

    def between_steps(record: StepRecord) -> None:
        current, peak = tracemalloc.get_traced_memory()
        if before:
            peaks.append(peak - before[-1])
        before.append(current)
        tracemalloc.reset_peak()

    gc.collect()  # the end of an earlier grid, during a step, would count
    trainer.fit(x, y, epochs=2, callbacks=[Calling(on_step=between_steps)])
    return peaks[1:]


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_allocates_nothing(activation: str) -> None:
    """Each activation; both tasks and optimizers with some of them, and with and without residual layers."""
    number = list(ACTIVATIONS).index(activation)
    classification, residual = bool(number % 2), number % 3 > 0
    nesterov = SGD(momentum=0.9, nesterov=True, weight_decay=0.01)
    optimizer = nesterov if number // 2 % 2 else Adam(weight_decay=0.01)
    model = MLP([128, 256, 256, 256, 10], activation, residual=residual)
    x, y = samples_of(model, 2 * 512 + 100, classification)
    trainer = Trainer(model, optimizer, batch_size=512, log_every=1, clip_norm=0.1)
    peaks = peaks_of_steps(trainer, x, y)
    # A vector over the samples is fine; an array of one layer's size is not.
    assert max(peaks) < 0.02 * essentials(model, 512, slots=0), f"a step took {max(peaks):,} bytes"


@pytest.mark.mpi(ranks=[4])
def test_a_step_on_a_grid_allocates_nothing(comm: MPI.Intracomm) -> None:
    model = MLP([128, 256, 256, 256, 10], residual=True)
    x, y = samples_of(model, 2 * 512 + 100, True)
    for split, distribution in (("columns", "local"), ("alternating", "scatter"), ("columns", "scatter-broadcast")):
        how = {"model_split": split, "distribution": distribution}
        trainer = Trainer(model, grid=ProcessGrid(comm, model=2), batch_size=512, log_every=1, clip_norm=0.1, **how)
        tracemalloc.start()
        peaks = peaks_of_steps(trainer, x, y)
        tracemalloc.stop()
        assert max(peaks) < 0.02 * essentials(model, 512, slots=0), f"{split}, {distribution}: {max(peaks):,} bytes"


def test_repeated_trainings_do_not_grow() -> None:
    model = MLP([32, 64, 10])
    x, y = samples_of(model, 300, True)
    trainer = Trainer(model, batch_size=100, log_every=1000)
    held = []
    tracemalloc.start()
    for _ in range(6):
        trainer.fit(x, y, epochs=3, validation=(x[:70], y[:70]))
        trainer.predict(x)
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(b - a for a, b in pairwise(held[1:])) < 20_000


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(("optimizer", "slots"), [(SGD(momentum=0.0), 0), (SGD(momentum=0.9), 1), (Adam(), 2)])
@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [
        ((784, 128, 127, 126, 125, 124, 123, 10), 128),
        ((16, 512, 512, 512, 512, 2), 100),
        ((512, 512, 512, 512, 10), 128),
    ],
)
def test_memory_is_told_truly_and_stays_near_what_training_needs(sizes, batch_size, optimizer, slots) -> None:
    model = MLP(sizes)
    x, y = samples_of(model, 2 * batch_size, True)
    start = tracemalloc.get_traced_memory()[0]
    trainer = Trainer(model, optimizer, batch_size=batch_size)
    trainer.fit(x, y, epochs=1)
    held = tracemalloc.get_traced_memory()[0] - start
    assert trainer.memory_bytes == pytest.approx(held, rel=0.02, abs=100_000)
    least = essentials(model, batch_size, slots)
    assert least <= trainer.memory_bytes, f"{least:,} are needed, {trainer.memory_bytes:,} are told"
    assert trainer.memory_bytes <= 1.3 * least, f"{trainer.memory_bytes:,} of {least:,} needed"


@pytest.mark.in_process(ranks=[1, 2])
@pytest.mark.parametrize("how", [{}, {"method": "gpipe", "microbatches": 2}, {"method": "pipedream"}], ids=str)
def test_workspaces_are_as_large_as_the_data_need(comm: MPI.Intracomm, how: dict[str, Any]) -> None:
    """A minibatch of all samples; larger data that are evaluated, also between two steps, replace the workspaces."""
    model, stages = MLP([16, 200, 150, 2], "tanh"), comm.size if how else 1
    if comm.size == 1:
        how = {}
    (x, y), found = samples_of(model, 90, True), []
    evaluated: list[float] = []

    def evaluate(record: object) -> None:
        evaluated.append(trainer.evaluate(x, y).loss)

    for batch_size in (10**12, 40):
        grid, evaluated = ProcessGrid(comm, pipeline=stages), []
        trainer = Trainer(model, SGD(lr=0.1), grid=grid, batch_size=batch_size, dtype="float64", log_every=1, **how)
        trainer.fit(x[:40], y[:40], epochs=1)
        memory = trainer.memory_bytes
        trainer.predict(x[:30])
        assert trainer.memory_bytes == memory
        trainer.fit(x[:40], y[:40], epochs=3, callbacks=[Calling(on_step=evaluate)])
        assert (trainer.memory_bytes > memory) == (batch_size == 10**12)
        found.append((memory, evaluated, trainer.weights(), trainer.predict(x)))
    (large, losses, weights, outputs), (small, expected_losses, expected_weights, expected) = found
    assert large == small
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    assert_arrays_close(weights, expected_weights, "weights")
    np.testing.assert_allclose(outputs, expected, rtol=1e-12)


@pytest.mark.in_process(ranks=[1, 2])
@pytest.mark.parametrize("bound", ["available_memory", "free_address_space"])
def test_a_training_beyond_the_free_memory_is_refused_before_its_first_step(comm, bound, monkeypatch) -> None:
    monkeypatch.setattr(layout_choice, "LEAST_CHECKED", 0)
    grid, (x, y) = ProcessGrid(comm), samples_of(MLP([16, 64, 2]), 4000, True)
    free = [10**12]
    monkeypatch.setattr(memory, bound, lambda: float(free[0]))
    model = MLP([16, 64, 2])
    needed = Trainer(model, grid=grid, batch_size=4000)
    needed.fit(x, y, epochs=1)
    comm.Barrier()
    free[0] = 100_000
    trainer = Trainer(model, grid=grid, batch_size=4000)
    message = r"training\.batch_size = 4000: .* do not fit this rank's memory: .* MB are needed and 100 kB are free"
    with pytest.raises(HybridnnError, match=message):
        trainer.fit(x, y, epochs=1)
    assert trainer.step == 0
    comm.Barrier()
    free[0] = comm.size * needed.memory_bytes
    trainer.fit(x, y, epochs=1)
    assert trainer.step == 1
    comm.Barrier()
    free[0] = 10_000
    with pytest.raises(HybridnnError, match=r"model\.sizes .* 1,218 parameters.* are needed and 10 kB are free"):
        Trainer(model, grid=grid)
    comm.Barrier()


@pytest.mark.mpi(ranks=[3])
def test_memory_that_ranks_share_is_told_truly(comm: MPI.Intracomm) -> None:
    model, grid = MLP([16, *[768] * 4, 2]), ProcessGrid(comm)
    x, y = samples_of(model, 64 * comm.size, True)
    gc.collect()  # the next trainer frees what other tests have dropped
    # The first training of a kind imports modules, which take memory too.
    first = Trainer(MLP([16, 256, 256, 2]), grid=grid, overlap=False)
    first.fit(x[:2], y[:2], epochs=1)
    first.free()
    gc.collect()
    tracemalloc.start()
    before = shared_mappings()
    trainer = Trainer(model, grid=grid, batch_size=32 * comm.size, overlap=False)
    trainer.fit(x, y, epochs=1, validation=(x, y))
    held = tracemalloc.get_traced_memory()[0] + (shared_mappings() - before) / comm.size
    tracemalloc.stop()
    assert trainer.memory_bytes == pytest.approx(held, abs=800_000), "the gradients are 7 MB"
    trainer.free()


SIZES = (400,) * 9
BATCH = 24


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH * 4, SIZES[0])
    return random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32)


def trainer_of(comm: MPI.Intracomm, **pipelining: object) -> Trainer:
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    return Trainer(MLP(SIZES), SGD(1e-3), grid=grid, batch_size=BATCH, **pipelining)


@pytest.mark.mpi(ranks=[2])
def test_the_reported_bytes_are_those_that_were_allocated(comm: MPI.Intracomm) -> None:
    x, y = data()
    trainer_of(comm).fit(x, y, epochs=1)  # imports modules and fills caches, which is not counted
    for pipelining in (
        {"method": "pipedream"},
        {"method": "spectrain"},
        {"method": "gpipe", "microbatches": 4},
        {"method": "1f1b", "microbatches": 4, "weight_grad": "per-microbatch"},
        {"method": "zb-h1", "microbatches": 4},
        {"method": "interleaved", "microbatches": 4},
        {"method": "fr"},
    ):
        gc.collect()  # what earlier tests left is not freed, with warnings about it, while memory is counted
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        trainer = trainer_of(comm, **pipelining)
        trainer.fit(x, y, epochs=1)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert trainer.memory_bytes == pytest.approx(after - before, rel=0.05), pipelining
        del trainer
