"""Trainer: training of a network on any process grid, from a single process to many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.checkpoints.progress import Progress
from hybridnn.comm.mpi import is_in_process, require_communicator
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.nn.kernels import HostArray
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.training.callbacks import Callback, Callbacks
from hybridnn.training.config import DeviceOptions, TrainConfig
from hybridnn.training.data_split import DataSplit, epoch_order, minibatches, warn_of_constant_targets
from hybridnn.training.device import TrainingDevice, resolve_device
from hybridnn.training.engine import make_engine
from hybridnn.training.epoch import EpochHooks, EpochResult, StepPosition, train_epochs
from hybridnn.training.layout_choice import choose_layout
from hybridnn.training.progress_bar import ProgressBar, in_notebook
from hybridnn.training.records import EpochRecord, EvaluationRecord, History, StepRecord
from hybridnn.training.trained_network import TrainedNetwork
from hybridnn.utils.checks import require_fields, require_whole

if TYPE_CHECKING:
    from typing_extensions import Self

    from hybridnn.checkpoints.manifest import Origin
    from hybridnn.checkpoints.reading import Checkpoint
    from hybridnn.checkpoints.writing import CheckpointWriter
    from hybridnn.data import Rows
    from hybridnn.training.step_evaluations import StepEvaluations


class Trainer(TrainedNetwork):
    """Trains an `MLP` on a process grid.

    The constructor and all methods except `busy` and `origin` are collective: every rank of the grid calls them.

    Parameters
    ----------
    model : MLP
    optimizer : Optimizer
        By default `SGD()`.
    grid : ProcessGrid, optional
        By default all ranks of the job as batch ranks.
    device : str, DeviceOptions or TrainingDevice
        ``"cpu"``, ``"gpu"``, or ``"auto"``, a GPU if every rank has one; see `resolve_device`.
    initial_weights : mapping, optional
        Global arrays ``layers.<i>.weight`` and ``.bias`` of the initial weights.
    **options
        The other attributes of `TrainConfig`, such as ``batch_size=50`` or ``method="gpipe"``. They are attributes of
        the trainer too, and cannot be changed.

    Raises
    ------
    EnvironmentProblem
        A requested GPU or transport is not available.
    SettingError, GridError, DataError
        A setting is not allowed, the model does not fit the grid, or the weights do not fit the model.

    Examples
    --------
    >>> import numpy as np
    >>> from hybridnn import MLP, SGD, Trainer
    >>> x = np.linspace(-1, 1, 200)[:, None]
    >>> trainer = Trainer(MLP([1, 16, 1], "tanh"), SGD(lr=0.1), batch_size=20)
    >>> history = trainer.fit(x, x**2, epochs=50)
    >>> trainer.evaluate(x, x**2).r2 > 0.9
    True
    """

    def __init__(
        self,
        model: MLP,
        optimizer: Optimizer | None = None,
        *,
        grid: ProcessGrid | None = None,
        device: str | DeviceOptions | TrainingDevice = "auto",
        initial_weights: Mapping[str, HostArray] | None = None,
        **options: Any,
    ) -> None:
        config = TrainConfig(model, SGD() if optimizer is None else optimizer, **options)
        self._start(config, grid, device, initial_weights)

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        *,
        grid: ProcessGrid | None = None,
        device: str | DeviceOptions | TrainingDevice = "auto",
        initial_weights: Mapping[str, HostArray] | None = None,
    ) -> Self:
        """Make a trainer from its options; the other parameters are those of `Trainer`."""
        trainer = cls.__new__(cls)
        trainer._start(config, grid, device, initial_weights)
        return trainer

    def _start(
        self,
        config: TrainConfig,
        grid: ProcessGrid | None,
        device: str | DeviceOptions | TrainingDevice,
        initial_weights: Mapping[str, HostArray] | None,
    ) -> None:
        config.require_kinds()
        require_fields("output", config, ("stall_seconds",))
        grid = grid if grid is not None else ProcessGrid()
        require_communicator(grid.node_comm)
        watch = grid.stall_watchdog
        self._end_watch = None if watch is None else watch.start(self, config.stall_seconds)
        if grid.size > 1:  # a single rank has nothing to compare
            from hybridnn.training.rank_comparison import require_same_trainer

            extra = {"initial_weights": initial_weights is not None, "device": device}
            require_same_trainer(grid, config.items() | extra)
        config = config.checked()  # after the comparison, so that all ranks raise an error or none does
        self.threads = limit_blas_threads(grid.node_group, _largest_product(config.model, config.batch_size, grid))
        self.history, self.progress = History(), Progress()
        self.device = resolve_device(device, grid)
        self._owns_device = self.device is not device
        layout = choose_layout(config, grid, on_host=self.device.kernels.on_host)
        engine = make_engine(config, grid, layout, self.device.kernels, self.device.capture)
        self.layout = engine.layout
        super().__init__(config, grid, engine)
        if initial_weights is None:
            self._engine.arrays.initialize(config.seed)
        else:
            self.load_weights(initial_weights)

    def __repr__(self) -> str:
        return f"<Trainer of {self.model!r} with {self.optimizer!r} on {self.grid!r}, step {self.step}>"

    def fit(
        self,
        x: Any,
        y: HostArray | None = None,
        *,
        epochs: int,
        validation: tuple[Any, HostArray | None] | Rows | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
        on_epoch: Callable[[EpochRecord], None] | None = None,
        on_evaluation: Callable[[EvaluationRecord], None] | None = None,
        should_stop: Callable[[StepPosition], bool] | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> History:
        """Train for a number of epochs; an incomplete epoch is completed first and counts as one of them.

        Parameters
        ----------
        x : array_like, shape (samples, features), or Rows
            Samples, or rows of a data set, which include their targets.
        y : array_like, shape (samples,) or (samples, outputs), optional
            Integers are class labels; floats are regression targets.
        epochs : int
            Passes over the samples.
        validation : tuple or Rows, optional
            Test samples and targets, as `x` and `y`, or rows of a data set.
        on_step, on_epoch, on_evaluation : callable, optional
            Called on every rank with each record; with an asynchronous pipeline method when the pipeline has drained.
        should_stop : callable, optional
            Called on every rank with the position of the training, after every step and after every epoch with its
            record written; with an asynchronous method only when the pipeline has drained. If it returns True, `fit`
            returns. It must return the same value on every rank, and may write a checkpoint.
        callbacks : sequence of Callback
            Objects with methods that are called on every rank; the same on every rank. See
            `hybridnn.training.callbacks`, which has `EarlyStopping`.
        progress : bool, optional
            Whether rank 0 shows a `ProgressBar`; by default a single process does in a notebook.

        Returns
        -------
        History
            All records of this trainer so far.

        Raises
        ------
        DataError
            If the data do not fit the model, or have elements that are not finite.
        NonFiniteLossError
            If the loss becomes infinite or NaN, or, after an epoch, the weights or the test loss. The weights are then
            those before that step, or, with an asynchronous pipeline method, those after the drain; on a GPU they are
            later ones, because losses are fetched only when they are logged and at the end of the epoch.
        """
        called = Callbacks(self, callbacks)
        self._require_same_fit(epochs, should_stop, callbacks, progress)
        require_whole("training.epochs", epochs, 1)
        if progress is None:
            progress = self.grid.size == 1 and in_notebook() and not is_in_process()
        if progress:
            called = Callbacks(self, (*callbacks, ProgressBar(epochs)))
        train, test = self._splits(x, y, validation)
        if y is not None and train.rows is not None and self.grid.rank == 0:
            warn_of_constant_targets(train.rows)
        per_epoch = ceil(train.samples / self.batch_size)
        last = self.progress.epoch + epochs - 1
        updates = self.step - self.progress.minibatches + epochs * per_epoch
        evaluations = self._step_evaluations(test, on_evaluation)

        def log(record: StepRecord) -> None:
            self.history.steps.append(record)
            if on_step is not None:
                on_step(record)
            called.step_logged(record)

        stops = False

        def end_epoch(result: EpochResult) -> None:
            nonlocal stops
            record = self._evaluate_epoch(result, test, last)
            if on_epoch is not None:
                on_epoch(record)
            stops = called.epoch_ended(record)

        called.train_begins()
        while self.progress.epoch <= last and not stops:
            called.epoch_begins(self.progress.epoch)
            loaded = self._until_drained(train, last, per_epoch, updates)
            # With an asynchronous method the pipeline is not empty between steps.
            stop_at = should_stop if self.layout.exact else None
            hooks = EpochHooks(log, self.log_every, stop_at, evaluations, called.epoch_begins, end_epoch)
            # A diverging loss raises `NonFiniteLossError` in the step.
            with np.errstate(over="ignore", invalid="ignore"):
                incomplete = train_epochs(self._engine, self.grid, train, loaded, self.progress, hooks)
            if incomplete is not None:
                self.progress = incomplete
                break
            if stops or (should_stop is not None and should_stop(StepPosition(self.step, 0, lambda: self.progress))):
                break
        called.train_ended()
        return self.history

    def _require_same_fit(
        self,
        epochs: int,
        should_stop: Callable[[StepPosition], bool] | None,
        callbacks: Sequence[Callback],
        progress: bool | None,
    ) -> None:
        """Compare the arguments of `fit` between ranks."""
        if self.grid.size == 1:
            return
        from hybridnn.training.rank_comparison import require_same_settings, trainer_facts

        settings: dict[str, Any] = {"epochs": epochs, "epoch": self.progress.epoch, "step": self.step}
        settings |= {"should_stop": should_stop is not None, "progress": progress}
        settings |= {"callbacks": [type(callback).__qualname__ for callback in callbacks]}
        require_same_settings(self.grid.world, lambda: trainer_facts(settings))

    def _until_drained(self, train: DataSplit, last: int, per_epoch: int, updates: int) -> list[list[Minibatch]]:
        """The minibatches of the rest of the epoch, and of the later ones before the pipeline drains."""
        start, every = self.progress, 1 if self.layout.exact else self.drain_every
        stop = min(last, ceil(start.epoch / every) * every)
        epochs = [self._minibatches(train, start, per_epoch, updates)]
        for epoch in range(start.epoch + 1, stop + 1):
            before = Progress(step=epochs[-1][-1].number + 1, epoch=epoch)
            epochs.append(self._minibatches(train, before, per_epoch, updates))
        if self.grid.size > 1:
            from hybridnn.training.rank_comparison import require_same_rates

            rates = [minibatch.rate for minibatches in epochs for minibatch in minibatches]
            require_same_rates(self.grid.world, range(start.step, start.step + len(rates)), rates)
        return epochs

    def _evaluate_epoch(self, result: EpochResult, test: DataSplit | None, last: int) -> EpochRecord:
        """Add an epoch to the history, with its evaluation if it has one."""
        progress, metrics = result.progress, None
        if test is not None and (progress.epoch % self.evaluate_every == 0 or progress.epoch == last):
            metrics = self._engine.evaluate(test)
        self.history.measured.append(result.measured)
        self._engine.require_finite(metrics, progress.step)
        self.progress = progress.next_epoch()
        loss = progress.loss_sum / progress.samples
        record = EpochRecord.of(progress.step, progress.epoch, loss, result.learning_rate, metrics, result.speed)
        self.history.epochs.append(record)
        return record

    def _step_evaluations(
        self, test: DataSplit | None, on_evaluation: Callable[[EvaluationRecord], None] | None
    ) -> StepEvaluations | None:
        if test is None or not self.evaluate_every_steps:
            return None
        from hybridnn.training.step_evaluations import StepEvaluations  # most trainings evaluate after epochs only

        def record(evaluation: EvaluationRecord) -> None:
            self.history.evaluations.append(evaluation)
            if on_evaluation is not None:
                on_evaluation(evaluation)

        return StepEvaluations(self._engine, test, self.evaluate_every_steps, record)

    def _minibatches(self, train: DataSplit, start: Progress, per_epoch: int, updates: int) -> list[Minibatch]:
        """The minibatches of the rest of an epoch, from `start` on."""
        order = epoch_order(train.samples, self.seed, start.epoch, self.shuffle)
        batches = list(minibatches(order, self.batch_size))[start.minibatches :]
        steps = range(start.step, start.step + len(batches))
        rates = [self.optimizer.lr * self.schedule.factor(step, per_epoch, updates) for step in steps]
        return self._engine.loader.minibatches(train, batches, rates, first=start.step)

    def free(self) -> None:
        """As `TrainedNetwork.free`; also ends the stall watchdog, and NCCL unless the caller provided the device."""
        super().free()
        self.end_watch()
        if self._owns_device:
            self.grid.disconnect()

    def end_watch(self) -> None:
        """End the stall watchdog for this trainer; every rank calls it."""
        if self._end_watch is not None:
            self._end_watch()

    def busy(self, what: str, at_most: float | None = None) -> AbstractContextManager[None]:
        """Context of long work of this rank, during which waiting ranks do not count as stalled.

        Parameters
        ----------
        what : str
            Name of the work, such as ``"plotting"``; shown if the job stalls nevertheless.
        at_most : float, optional
            Seconds after which the work counts as a stall; by default ten times `stall_seconds`.
        """
        watch = self.grid.stall_watchdog
        return nullcontext() if watch is None else watch.busy(what, at_most)

    def origin(self, data: str, settings: Mapping[str, str] | None = None) -> Origin:
        """Description of this training for the manifests of its checkpoints; the parameters as `checkpoint_writer`."""
        from hybridnn.checkpoints.manifest import Origin  # only a run that writes or reads checkpoints needs it
        from hybridnn.training.rank_comparison import trainer_facts

        return Origin(
            model=repr(self.model),
            optimizer=repr(self.optimizer),
            data=data,
            settings=dict(settings) if settings is not None else trainer_facts(self.config.items()),
            layout=self.layout,
        )

    def checkpoint_writer(
        self, folder: Path, data: str, keep: int = 3, settings: Mapping[str, str] | None = None
    ) -> CheckpointWriter:
        """Make a writer of this training's checkpoints; collective.

        Parameters
        ----------
        folder : Path
            Parent of the checkpoints' folders.
        data : str
            Identity of the data, for the manifests.
        keep : int
            Number of newest checkpoints to keep.
        settings : mapping, optional
            Texts of all settings that change the training, by name, for the manifests; by default those of `config`.
        """
        from hybridnn.checkpoints.writing import CheckpointWriter  # only a run that writes checkpoints needs it

        engine, origin = self._engine, self.origin(data, settings)
        return CheckpointWriter(folder, self.grid, self.model, engine.chunks, engine.states, origin, keep=keep)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load weights, optimizer state and progress of a checkpoint, written on any grid; collective.

        Raises
        ------
        DataError
            On every rank: the checkpoint is of another network or optimizer, or cannot be read.
        """
        self._engine.restore(lambda: checkpoint.read_into(self._engine.chunks, self._engine.states))
        self.progress = checkpoint.manifest.progress


def _largest_product(model: MLP, batch_size: int, grid: ProcessGrid) -> int:
    """Multiply-adds of this rank's largest matrix product."""
    weights = max(layer.inputs * layer.outputs for layer in model.layers)
    return weights * -(-batch_size // grid.batch) // grid.model
