"""The state of a trainer is true after every step: interrupted, restored, freed, or used by two threads."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, Callback, Cosine, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.data import ArrayRows
from hybridnn.errors import DataError, NonFiniteLossError, SettingError, StateError
from hybridnn.in_process import CommunicationError, DeadlockError, run_ranks
from hybridnn.training.trained_network import TrainedNetwork
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, assert_arrays_same, data, make_trainer
from reference.network import Array
from reference.training_cases import Grid

SIZES = (5, 8, 7, 6, 8, 4)

Layout = tuple[Grid, dict[str, Any]]

EXACT: dict[int, list[Layout]] = {
    1: [(Grid(), {}), (Grid(), {"method": "gpipe", "microbatches": 2})],
    2: [
        (Grid(), {}),
        (Grid(model=2), {}),
        (Grid(pipeline=2), {"method": "1f1b", "microbatches": 2}),
        (Grid(pipeline=2), {"method": "zb-h1", "microbatches": 3}),
        (Grid(pipeline=2), {"method": "interleaved", "microbatches": 2, "chunks": 2}),
    ],
    4: [
        (Grid(), {}),
        (Grid(model=2), {}),
        (Grid(pipeline=2), {"method": "gpipe", "microbatches": 2}),
        (Grid(stages=((1, 1), (3, 1))), {"method": "1f1b", "microbatches": 2}),
    ],
}
STALE: dict[int, list[Layout]] = {
    2: [(Grid(pipeline=2), {})],
    4: [(Grid(pipeline=2), {}), (Grid(pipeline=2, model=2), {})],
}
"""Layouts by number of ranks; a stale method has the same stages after a checkpoint."""


@dataclass
class RaisesAt(Callback):
    """Raises an error, or ends the training, at the `left`-th call of a hook."""

    hook: str
    left: int
    error: type[BaseException] | None

    def _call(self, hook: str) -> bool:
        self.left -= hook == self.hook
        if hook != self.hook or self.left:
            return False
        if self.error is not None:
            raise self.error
        return True

    def on_epoch_begin(self, trainer: TrainedNetwork, epoch: int) -> None:
        self._call("epoch begin")

    def on_train_batch_end(self, trainer: TrainedNetwork, record: Any) -> None:
        self._call("step")

    def on_epoch_end(self, trainer: TrainedNetwork, record: Any) -> None:
        self._call("epoch end")

    def between_steps(self, trainer: TrainedNetwork, reached: Any) -> bool:
        return self._call("between")


def records(trainer: Trainer) -> dict[tuple[str, int], tuple[float, ...]]:
    """What the history has for every logged step and every epoch, each once."""
    steps, epochs = trainer.history.steps, trainer.history.epochs
    found: dict[Any, Any] = {("step", it.step): (it.epoch, it.train_loss, it.learning_rate) for it in steps}
    found |= {
        ("epoch", it.epoch): (it.step, it.train_loss, it.learning_rate, it.validation_loss or 0.0) for it in epochs
    }
    assert len(found) == len(steps) + len(epochs)
    return found


class Drawn:
    """A training drawn from a seed, run twice on the ranks of `comm`: without interruption, and with random ones.

    Both have the same bits, unless the second has moved to another layout.
    """

    def __init__(self, seed: int, comm: Any, layouts: list[Layout], settings: dict[str, Any], folder: Path) -> None:
        self.random, self.comm, self.layouts, self.settings = np.random.default_rng(seed), comm, layouts, settings
        self.folder, self.written, self.moved = folder, 0, False
        draw, predicts = self.random.choice, settings.get("method") == "spectrain"
        self.case = Case(
            SIZES,
            classification=bool(draw(2)),
            optimizer=str(draw(["momentum", "nesterov", "adam", "adamw", "rmsprop"][: -1 if predicts else 5])),
            schedule=str(draw(["constant", "cosine", "step"])),
            batch_size=int(draw([5, 8, 11])),
            seed=seed,
        )
        epochs = (1, 2, 4)[:2] if "drain_every" not in settings else (2, 4)
        self.parts = [(data(replace(self.case, samples=int(n))), int(draw(epochs))) for n in draw([17, 24, 37], 2)]
        self.first = layouts[draw(len(layouts))]

    def trainer(self, layout: Layout) -> Trainer:
        grid, settings = layout
        return make_trainer(self.case, grid.on(self.comm), evaluate_every=1, **self.settings, **settings)

    def uninterrupted(self) -> Trainer:
        trainer = self.trainer(self.first)
        for samples, epochs in self.parts:
            trainer.fit(*samples, epochs=epochs, validation=data(self.case, "test"))
        return trainer

    def interrupted(self) -> Trainer:
        layout, trainer = self.first, self.trainer(self.first)
        for samples, epochs in self.parts:
            end, checkpoint = trainer.progress.epoch + epochs, None
            while trainer.progress.epoch < end:
                action = self.random.choice(["fit", "fit", "look", "checkpoint", "back", "move"])
                if action == "fit":
                    self.fit(trainer, samples, end - trainer.progress.epoch)
                elif action == "look":
                    self.look(trainer, samples)
                elif action == "back" and checkpoint is not None:
                    trainer.restore(checkpoint.read_into, checkpoint.manifest.progress)
                elif action in ("checkpoint", "move"):
                    checkpoint = self.checkpoint(trainer)
                if action == "move":
                    before, old = trainer, layout
                    layout = self.layouts[self.random.choice(len(self.layouts))]
                    trainer = self.trainer(layout)
                    trainer.restore(checkpoint.read_into, checkpoint.manifest.progress)
                    trainer.history = before.history
                    self.moved |= layout != old
        return trainer

    def fit(self, trainer: Trainer, samples: tuple[Array, Array], epochs: int) -> None:
        hook = str(self.random.choice(["epoch begin", "step", "step", "epoch end", "between"]))
        count = int(self.random.integers(1, 12 if hook in ("step", "between") else 4))
        errors = [KeyboardInterrupt, ZeroDivisionError, None if hook == "between" else RuntimeError]
        error = errors[self.random.choice(3)]
        try:
            callback = RaisesAt(hook, count, error)
            trainer.fit(*samples, epochs=epochs, validation=data(self.case, "test"), callbacks=[callback])
        except tuple(filter(None, errors)):
            assert error is not None
        assert trainer.step == trainer.progress.step == trainer.engine.updates

    def look(self, trainer: Trainer, samples: tuple[Array, Array]) -> None:
        """Evaluate, predict, and try what is refused."""
        before, (x, y) = trainer.progress, samples
        trainer.evaluate(*data(self.case, "test"))
        trainer.predict(x[:3])
        if trainer.step and trainer.history.epochs + trainer.history.steps and not self.moved:
            with pytest.raises(DataError, match="this training is a"):
                trainer.evaluate(x, y.astype(float) if self.case.classification else np.zeros(len(x), int))
        if before.minibatches and not self.moved:
            with pytest.raises(DataError, match=f"was begun with ({len(x)}|others) and is not complete"):
                trainer.fit(x[: before.samples - 1], y[: before.samples - 1], epochs=1)
        assert trainer.progress == before

    def checkpoint(self, trainer: Trainer) -> Any:
        self.written += 1
        folder = self.folder / str(self.written)
        checkpoint_writer(trainer, folder, "data").write(trainer.progress)
        checkpoint, problems = newest_valid(folder, trainer.grid.world)
        assert checkpoint is not None, problems
        return checkpoint


def check_draw(seed: int, folder: Path) -> None:
    random = np.random.default_rng([seed, 1])
    is_stale = random.random() < 0.35
    ranks = int(random.choice([2, 4] if is_stale else [1, 2, 4]))
    settings: dict[str, Any] = {}
    if is_stale:
        method = str(random.choice(["pipedream", "ddg", "fr", "vanilla", "pipedream-vsync", "spectrain"]))
        settings = {"method": method, "drain_every": int(random.integers(1, 4))}

    def program(comm: Any) -> None:
        drawn = Drawn(seed, comm, (STALE if is_stale else EXACT)[ranks], settings, folder)
        expected, found = drawn.uninterrupted(), drawn.interrupted()
        where, tolerance = f"seed {seed}: {drawn.case}, {settings}", 1e-10 if drawn.moved else 0.0
        assert_arrays_close(found.weights(), expected.weights(), where, tolerance)
        for slot, arrays in expected.optimizer_slots().items():
            assert_arrays_close(found.optimizer_slots()[slot], arrays, f"{where}, {slot}", tolerance)
        assert found.progress == expected.progress
        ours, theirs = records(found), records(expected)
        assert ours.keys() == theirs.keys() if not is_stale else ours.keys() <= theirs.keys(), where
        for key, values in ours.items():  # an exception after a drain leaves out records
            np.testing.assert_allclose(
                values, theirs[key], rtol=1e-9 if drawn.moved else 0.0, err_msg=f"{where}: {key}"
            )

    run_ranks(ranks, program)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.sweep if seed < 60 else pytest.mark.slow) for seed in range(200)]
)
def test_an_interrupted_training_equals_an_uninterrupted_one(seed: int, tmp_path: Path) -> None:
    check_draw(seed, tmp_path)


X, Y = data(replace(Case(), classification=False, samples=40))
"""Four minibatches of ten samples."""


def trainer_on(grid: ProcessGrid | None = None, **settings: Any) -> Trainer:
    settings = {"batch_size": 10, "dtype": "float64", "log_every": 1, "schedule": Cosine()} | settings
    return Trainer(MLP([5, 8, 4], "tanh"), settings.pop("optimizer", Adam(lr=0.01)), grid=grid, **settings)


class ActingRows(ArrayRows):
    """Samples that call a function when the minibatch of a step, from 1, is loaded."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        super().__init__(X, Y)
        self.left, self.act = step, act

    def take(self, indices: Any, x: Any, y: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()
        super().take(indices, x, y)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """Python's handler of SIGINT, which a shell lets processes in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("step", [2, 4, 8])
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_within_a_step_takes_effect_after_it_and_the_second_at_once(step: int, times: int) -> None:
    found, expected = trainer_on(), trainer_on()
    expected.fit(X, Y, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        found.fit(ActingRows(step, lambda: [interrupt() for _ in range(times)]), epochs=2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert found.step == found.progress.step == len(found.history.steps) == step - (times == 2)
    found.fit(X, Y, epochs=3 - found.progress.epoch)
    assert_arrays_same(found.weights(), expected.weights())
    assert records(found) == records(expected)
    assert found.history.steps[-1].learning_rate < 0.001


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_of_a_training_within_another_is_that_of_the_inner_step() -> None:
    outer, inner, expected = trainer_on(), trainer_on(), trainer_on()
    rows = ActingRows(2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        outer.fit(X, Y, epochs=1, callbacks=[Calling(on_step=lambda record: inner.fit(rows, epochs=1))])
    assert (outer.step, inner.step) == (1, 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for it in (outer, inner, expected):
        it.fit(X, Y, epochs=1)
    assert_arrays_same(outer.weights(), expected.weights())
    assert_arrays_same(inner.weights(), expected.weights())


def test_another_handler_of_interrupts_stays() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        trainer_on().fit(ActingRows(2, interrupt), epochs=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT]


@pytest.mark.in_process(ranks=[1, 2])
def test_half_an_update_is_not_trained_on(comm: MPI.Intracomm, tmp_path: Path) -> None:
    found, expected = (trainer_on(ProcessGrid(comm)) for _ in range(2))
    expected.fit(X, Y, epochs=1)
    found.fit(X, Y, epochs=1)
    checkpoint_writer(found, tmp_path, "data").write(found.progress)
    rule, update = found.engine.chunks[0].replica, found.engine.chunks[0].replica.update

    def fail(*values: Any, **given: Any) -> None:
        update(*values, **given)
        raise MemoryError

    for begins_anew in (False, True):
        rule.update = fail
        with pytest.raises(MemoryError):
            found.fit(X, Y, epochs=1)
        rule.update = update
        assert found.step == 4 * (not begins_anew)
        calls = (lambda: found.fit(X, Y, epochs=1), lambda: found.evaluate(X, Y), lambda: found.predict(X))
        for call in (*calls, lambda: found.load_weights(found.weights())):
            with pytest.raises(StateError, match=r"^step \d was interrupted before its end: restore a checkpoint, or "):
                call()
        if begins_anew:
            checkpoint, _ = newest_valid(tmp_path, found.grid.world)
            found.restore(checkpoint.read_into, checkpoint.manifest.progress)
        else:
            initial = trainer_on(found.grid).weights()
            found.load_weights(initial, reset_optimizer=True)
    assert_arrays_same(found.weights(), expected.weights())
    for it in (found, expected):
        it.fit(X, Y, epochs=1)
    assert_arrays_same(found.weights(), expected.weights())
    assert_arrays_same(found.optimizer_slots()["second"], expected.optimizer_slots()["second"])


def test_messages_of_an_interrupted_step_are_not_taken_for_others() -> None:
    refused: list[int] = []

    def fail() -> None:
        raise OSError("the file is gone")

    def program(comm: Any) -> None:
        trainer = trainer_on(ProcessGrid(comm, pipeline=2), method="pipedream")
        initial = trainer.weights()
        with pytest.raises(OSError, match="the file is gone"):
            trainer.fit(ActingRows(3, fail), epochs=1)
        for call in (
            lambda: trainer.fit(X, Y, epochs=1),
            lambda: trainer.load_weights(initial, reset_optimizer=True),
            lambda: trainer.restore(lambda chunks, states: None, trainer.progress),
        ):
            with pytest.raises(StateError, match="its messages may be in flight; restore a checkpoint with another P"):
                call()
        refused.append(comm.rank)

    with pytest.raises((DeadlockError, CommunicationError)):  # of the other rank
        run_ranks(2, program)
    assert 0 in refused


class Uses(Callback):
    """Calls methods of trainers while `fit` runs, once: from this thread and from another."""

    def __init__(self, here: dict[str, Callable[[], object]], there: dict[str, Callable[[], object]]) -> None:
        self.here, self.there, self.errors = here, there, dict[str, str]()

    def _call(self, calls: dict[str, Callable[[], object]]) -> None:
        for name, call in calls.items():
            try:
                call()
            except StateError as error:
                self.errors[name] = str(error)

    def on_train_batch_end(self, trainer: TrainedNetwork, record: Any) -> None:
        if record.step % 4 == 2:
            self._call(self.here)
            thread = threading.Thread(target=self._call, args=(self.there,))
            thread.start()
            thread.join()


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_a_second_fit_and_another_thread_are_refused_while_one_runs(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2 if comm.size == 4 else 1)
    found, expected, other, alone = (trainer_on(grid) for _ in range(4))

    def restore() -> None:
        found.restore(lambda chunks, states: None, found.progress)

    refused: dict[str, Callable[[], object]] = {
        "fit": lambda: found.fit(X, Y, epochs=1),
        "load_weights": lambda: found.load_weights(found.weights(), reset_optimizer=True),
        "restore": restore,
        "free": found.free,
    }
    allowed: dict[str, Callable[[], object]] = {
        "evaluate": lambda: found.evaluate(X, Y),
        "predict": lambda: found.predict(X),
        "weights": found.weights,
    }

    of_grid: dict[str, Callable[[], object]] = {
        "other fit": lambda: other.fit(X, Y, epochs=1),
        "other weights": other.weights,
    }
    there = {name: call for name, call in (refused | allowed).items()} | (of_grid if comm.size > 1 else {})
    uses = Uses(refused | allowed | of_grid | {"make": lambda: trainer_on(grid)}, {})
    found.fit(X, Y, epochs=1, callbacks=[uses])
    assert uses.errors.keys() == refused.keys()
    assert all("fit of this trainer is running; call it afterwards" in text for text in uses.errors.values())
    uses = Uses({}, there)
    found.fit(X, Y, epochs=1, callbacks=[uses, Calling()])
    assert uses.errors.keys() == there.keys()
    assert all("another thread is using this trainer or its process grid" in text for text in uses.errors.values())
    for _ in range(2):
        expected.fit(X, Y, epochs=1)
    alone.fit(X, Y, epochs=1)
    assert_arrays_same(found.weights(), expected.weights())
    assert_arrays_same(other.weights(), alone.weights())


@pytest.mark.in_process(ranks=[2])
def test_ranks_that_train_different_trainers_of_a_grid_are_refused(comm: MPI.Intracomm) -> None:
    trainers = [trainer_on(grid) for grid in 2 * [ProcessGrid(comm)]]
    with pytest.raises(SettingError, match=r"^trainer: rank 0 has 1, rank 1 has 2; it must be the same on every rank$"):
        trainers[comm.rank].fit(X, Y, epochs=1)


def test_trainers_in_threads_of_one_process_do_not_disturb_one_another() -> None:
    def train(seed: int, into: dict[int, dict[str, Array]]) -> None:
        trainer = trainer_on(seed=seed)
        trainer.fit(X, Y, epochs=3)
        into[seed] = trainer.weights()

    together, alone = dict[int, dict[str, Array]](), dict[int, dict[str, Array]]()
    threads = [threading.Thread(target=train, args=(seed, together)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        train(seed, alone)
        assert_arrays_same(together[seed], alone[seed])


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_a_freed_trainer_says_so(comm: MPI.Intracomm, tmp_path: Path) -> None:
    it = trainer_on(ProcessGrid(comm, pipeline=2 if comm.size == 4 else 1))
    it.fit(X, Y, epochs=1)
    weights, writer = it.weights(), checkpoint_writer(it, tmp_path / "checkpoints", "x")
    writer.begin(it.progress)  # is completed
    for _ in range(2):
        it.free()
    assert writer.finish().name == "step-00000004"
    for write in (writer.write, writer.begin):
        with pytest.raises(StateError, match="the Trainer of this checkpoint writer was freed"):
            write(it.progress)
    calls: tuple[Callable[[], object], ...] = (
        lambda: it.fit(X, Y, epochs=1),
        lambda: it.evaluate(X, Y),
        lambda: it.predict(X),
        *(it.weights, it.optimizer_slots, it.gradients, it.gradient_norm),
        lambda: it.load_weights(weights),
        lambda: it.load_weights(weights, reset_optimizer=True),
        lambda: it.restore(lambda chunks, states: None, it.progress),
        lambda: it.stage_memory("regression"),
        lambda: it.memory_bytes,
    )
    for call in calls:
        with pytest.raises(StateError, match=r"^this Trainer was freed: make another one$"):
            call()
    assert (it.step, len(it.history.epochs)) == (4, 1)


@pytest.mark.in_process(ranks=[1, 2, 4])
@pytest.mark.parametrize("method", ["1f1b", "pipedream"])
def test_after_a_loss_that_is_not_finite_a_training_begins_anew(comm: MPI.Intracomm, method: str) -> None:
    how = {"method": method, "microbatches": 1} if comm.size == 4 else {}
    grid = ProcessGrid(comm, pipeline=2 if comm.size == 4 else 1)
    found, expected = (trainer_on(grid, optimizer=SGD(lr=lr, momentum=0.9), **how) for lr in (1e150, 0.01))
    initial = found.weights()
    with pytest.raises(NonFiniteLossError, match=r"load_weights\(weights, reset_optimizer=True\)"):
        found.fit(X, Y, epochs=3)
    assert found.step == found.progress.step == found.engine.updates > 0
    found.load_weights(initial, reset_optimizer=True)
    assert (found.step, found.progress.epoch, found.history.steps, found.history.epochs) == (0, 1, [], [])
    found.set_learning_rate(0.01)
    for it in (found, expected):
        it.fit(X, Y, epochs=2)
    assert_arrays_same(found.weights(), expected.weights())
    assert_arrays_same(found.optimizer_slots()["velocity"], expected.optimizer_slots()["velocity"])
    assert records(found) == records(expected)


def test_an_incomplete_epoch_is_completed_with_as_many_samples() -> None:
    trainer = trainer_on()
    trainer.fit(X, Y, epochs=2, callbacks=[RaisesAt("between", 3, None)])
    for samples in (29, 39, 60):
        with pytest.raises(DataError, match=rf"^training data: {samples} samples, but epoch 1 was begun with 40 and "):
            trainer.fit(np.resize(X, (samples, 5)), np.resize(Y, (samples, 4)), epochs=1)
    trainer.fit(X, Y, epochs=1)
    trainer.fit(X[:29], Y[:29], epochs=1)
    assert [record.step for record in trainer.history.epochs] == [4, 7]


def test_a_restored_trainer_knows_its_task_and_the_samples_of_its_epoch(tmp_path: Path) -> None:
    trainer, restored = trainer_on(), trainer_on()
    trainer.fit(X, Y, epochs=1, callbacks=[RaisesAt("between", 3, None)])
    checkpoint_writer(trainer, tmp_path, "data").write(trainer.progress)
    checkpoint, _ = newest_valid(tmp_path)
    restored.restore(checkpoint.read_into, checkpoint.manifest.progress)
    with pytest.raises(DataError, match="this training is a regression"):
        restored.evaluate(X, np.zeros(len(X), int))
    with pytest.raises(SettingError, match="the training is a regression"):
        restored.predict_proba(X)
    with pytest.raises(DataError, match="60 samples, but epoch 1 was begun with 40"):
        restored.fit(np.resize(X, (60, 5)), np.resize(Y, (60, 4)), epochs=1)
