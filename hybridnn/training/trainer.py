"""Trainer: training of a network on any process grid, from a single process to many ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from math import ceil, nan
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.comm.mpi import is_in_process, require_communicator
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.errors import DataError, SettingError, warn_caller
from hybridnn.nn.kernels import HostArray
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer, find_optimizer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.training.config import ADVICE, OPTIONS, DeviceOptions, TrainConfig, TrainOptions, show_options
from hybridnn.training.data_split import DataSplit, balanced_weights, doubts, epoch_order, minibatches
from hybridnn.training.device import TrainingDevice, resolve_device
from hybridnn.training.epoch import EpochResult, EpochSteps, Event
from hybridnn.training.layout_choice import choose_layout
from hybridnn.training.records import (
    EpochRecord,
    EvaluationRecord,
    History,
    MeasuredStep,
    Progress,
    Speed,
    StepPosition,
    StepRecord,
    TrainingState,
)
from hybridnn.training.trained_network import Callback, TrainedNetwork, collective
from hybridnn.utils.checks import AtLeastZero, require_type, require_whole, with_advice
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from hybridnn.data import Rows
    from hybridnn.nn.optimizers import OptimizerState
    from hybridnn.parallel.model_chunk import ModelChunk


ADVICE_ON_FIT: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"give it to Trainer, as in Trainer(model, {name}=…)" for name in OPTIONS},
        **{name: text for name, text in ADVICE.items() if "give it to fit" not in text},
        "validation_data": "did you mean validation?",
        "validation_split": "give validation=(x, y), samples that are not trained on",
        "verbose": "did you mean progress?",
    }
)
"""What to write in place of arguments of `Trainer.fit` that are none."""


class Trainer(TrainedNetwork):
    """Trains an `MLP` on a process grid.

    The constructor and all methods except `busy` are collective: every rank of the grid calls them.

    Parameters
    ----------
    model : MLP
    optimizer : Optimizer or str
        By default `SGD()`; a name, such as ``"adam"``, stands for its default settings.
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

    @with_advice(ADVICE)
    @show_options
    def __init__(
        self,
        model: MLP,
        optimizer: Optimizer | str | None = None,
        *,
        grid: ProcessGrid | None = None,
        device: str | DeviceOptions | TrainingDevice = "auto",
        initial_weights: Mapping[str, HostArray] | None = None,
        **options: Unpack[TrainOptions],
    ) -> None:
        rule = find_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
        config = TrainConfig(model, SGD() if rule is None else rule, **options)
        stall_seconds = require_type("output.stall_seconds", config.stall_seconds, AtLeastZero)
        grid = grid if grid is not None else ProcessGrid(stall_seconds=stall_seconds)
        if not isinstance(grid, ProcessGrid):
            raise SettingError("grid", grid, "must be a ProcessGrid, for example ProcessGrid(batch=2)")
        require_communicator(grid.comm)
        watch = grid.stall_watchdog
        # It ends the stall watchdog for this trainer; every rank calls it.
        self.end_watch: Callable[[], None] = (lambda: None) if watch is None else watch.start(self, stall_seconds)
        if grid.size > 1:  # a single rank has nothing to compare
            from hybridnn.training.rank_comparison import require_same_settings, software, trainer_facts

            given = config.items() | {"initial_weights": initial_weights is not None, "device": device}
            with TrainingState(grid.lock).entered("Trainer"):
                require_same_settings(grid.world, lambda: software(grid.node_group) | trainer_facts(given))
            grid.trainers += 1
        self._number = grid.trainers
        config = config.checked()  # after the comparison, so that all ranks raise an error or none does
        self.threads = limit_blas_threads(grid.node_group, _largest_product(config.model, config.batch_size, grid))
        self.device = resolve_device(device, grid, class_weight=config.class_weight)
        self._owns_device = self.device is not device
        if config.class_weight is not None and not self.device.kernels.on_host:
            raise SettingError("training.class_weight", config.class_weight, "needs the CPU: device.name = 'cpu'")
        layout = choose_layout(config, grid, on_host=self.device.kernels.on_host)
        engine = self.device.make_engine(config, grid, layout)
        self.layout = engine.layout
        super().__init__(config, grid, engine)
        if initial_weights is None:
            self.engine.load()
        else:
            self.load_weights(initial_weights)

    @classmethod
    def from_config(cls, config: TrainConfig, **how: Any) -> Self:
        """Make a trainer from its options; `how` are the other parameters of `Trainer`."""
        return cls(**config.items(), **how)

    def __repr__(self) -> str:
        return f"<Trainer of {self.model!r} with {self.optimizer!r} on {self.grid!r}, step {self.step}>"

    @with_advice(ADVICE_ON_FIT)
    @collective
    def fit(
        self,
        x: Any,
        y: HostArray | None = None,
        *,
        epochs: int,
        validation: tuple[Any, HostArray | None] | Rows | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> History:
        """Train for a number of epochs; an incomplete epoch is completed first and counts as one of them.

        If an exception or Ctrl-C ends it, `progress` has the steps that were done, and the next call goes on from
        there. In the main thread of a single process, Ctrl-C takes effect after the current step, and a second one at
        once.

        Parameters
        ----------
        x : array_like or sparse, shape (samples, features), or Rows
            Samples, or rows of a data set, which include their targets.
        y : array_like, shape (samples,) or (samples, outputs), optional
            Integers are class labels; floats are regression targets. Later targets must be of the same kind.
        epochs : int
            Passes over the samples.
        validation : tuple or Rows, optional
            Samples and targets on which epochs are evaluated, as `x` and `y`, or rows of a data set.
        callbacks : sequence of Callback
            What follows the training and may end it, such as `EarlyStopping`; the same on every rank.
        progress : bool, optional
            Whether rank 0 shows a `ProgressBar`; by default a single process does in a notebook.

        Returns
        -------
        History
            All records of this trainer so far.

        Raises
        ------
        DataError
            If the data do not fit the model, are of another task than before, have elements that are masked or not
            finite in the dtype, or are not as many samples as those of an incomplete epoch.
        SettingError
            If the training does not fit the memory that is free.
        StateError
            If a `fit` of this trainer is running, another thread uses its grid, a step was interrupted before its end,
            or the trainer was freed.
        NonFiniteLossError
            If the loss becomes infinite or NaN, or, after an epoch, the weights or the validation loss. The weights are
            then those before that step, or, with an asynchronous pipeline method, those after the drain; on a GPU they
            are later ones, because losses are fetched only when they are logged and at the end of the epoch.
        """
        self._state.require_no_fit("fit")
        self._state.require_complete_step()
        if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
            raise SettingError("callbacks", callbacks, "must be a list of callbacks, for example [EarlyStopping()]")
        parts = len(validation) if isinstance(validation, (tuple, list)) else 2
        if isinstance(validation, Real) or parts != 2:
            allowed = "must be samples and targets, (x, y), or rows of a data set: split them off first"
            text = None if parts == 2 else f"validation has {counted(parts, 'part')}: it {allowed}"
            raise SettingError("validation", validation, allowed, text)
        if self.grid.size > 1:
            from hybridnn.training.rank_comparison import require_same_settings, trainer_facts

            names = [type(callback).__qualname__ for callback in callbacks]
            facts: dict[str, Any] = {"epochs": epochs, "epoch": self.progress.epoch, "step": self.step}
            facts |= {"trainer": self._number, "progress": progress, "callbacks": names}
            require_same_settings(self.grid.world, lambda: trainer_facts(facts))
        epochs = require_whole("training.epochs", epochs, 1)
        asks = progress is None and "IPython" in sys.modules and self.grid.size == 1 and not is_in_process()
        if progress or asks:
            from hybridnn.training.callbacks import ProgressBar, in_notebook

            callbacks = [*callbacks, ProgressBar(epochs)] if progress or in_notebook() else callbacks
        train, test = self._splits(x, y, validation)
        self.engine.reserve(train.task, training=train.samples, forward=0 if test is None else test.samples)
        if y is not None and train.rows is not None and self.grid.rank == 0:
            for doubt in doubts(train.rows, test, is_first=self.step == 0):
                warn_caller(doubt)
        if self.class_weight is not None:
            self.engine.class_weights = balanced_weights(self.grid, train, self.model.sizes[-1], self.engine.dtype)
        per_epoch = self._steps_per_epoch(train)
        self.last_epoch = self.progress.epoch + epochs - 1
        self.last_step = self.step - self.progress.minibatches + epochs * per_epoch
        self.stop_training, self.has_validation = False, test is not None
        alone = self.grid.size == 1 and not is_in_process()  # ranks of this process end their trainings in any order
        self.engine.observe()  # a training that failed may have left an observer
        with self._state.fitting(train.task, train.samples, defers_interrupts=alone):
            for callback in callbacks:
                callback.on_train_begin(self)
            stops = False
            if self.progress.minibatches == per_epoch:  # an exception ended `fit` between the last step and the record
                rate = self.optimizer.lr * self.schedule.multiplier(self.step - 1, per_epoch, self.last_step)
                nothing = Speed(0.0, 0.0, 0.0, 0, 0.0), MeasuredStep(self.progress.epoch, 0.0, {}, 0.0, 0.0)
                stops = self._end_epoch(EpochResult(self.progress, rate, *nothing), test, callbacks)
            while self.progress.epoch <= self.last_epoch and not stops:
                stops = self._train_until_drained(train, test, per_epoch, callbacks)
            for callback in callbacks:
                callback.on_train_end(self)
        return self.history

    def _steps_per_epoch(self, train: DataSplit) -> int:
        """Steps of an epoch; `DataError` if an incomplete one was begun with other samples."""
        progress, begun_with = self.progress, self.progress.epoch_samples
        per_epoch: int = ceil(train.samples / self.batch_size)
        if progress.minibatches and (
            begun_with not in (0, train.samples) or progress.samples > train.samples or progress.minibatches > per_epoch
        ):
            raise DataError(
                f"training data: {counted(train.samples, 'sample')}, but epoch {progress.epoch} was begun with "
                f"{begun_with or 'others'} and is not complete: complete it with the same samples, "
                "or begin anew with load_weights(weights, reset_optimizer=True)"
            )
        return per_epoch

    def _train_until_drained(
        self, train: DataSplit, test: DataSplit | None, per_epoch: int, callbacks: Sequence[Callback]
    ) -> bool:
        """Train the rest of the epoch, and later ones before the pipeline drains; whether a callback ends the training.

        Each event of the training goes into the history and to the callbacks.
        """
        for callback in callbacks:
            callback.on_epoch_begin(self, self.progress.epoch)
        loaded = self._until_drained(train, per_epoch)
        drained = self.progress.epoch + len(loaded)
        # Positions between steps are made for those only that look at them.
        pausing = [callback for callback in callbacks if type(callback).between_steps is not Callback.between_steps]

        def pause(reached: StepPosition) -> bool:
            """Call the callbacks between two steps; whether one of them ends the training."""
            return any([callback.between_steps(self, reached) for callback in pausing])

        def take(event: Event) -> bool:
            """Add an event to the history and call the callbacks; whether one of them ends the training."""
            stops = False
            if isinstance(event, StepRecord):
                self.history.steps.append(event)
                for callback in callbacks:
                    callback.on_train_batch_end(self, self.history.steps[-1])  # to which a callback may add
            elif isinstance(event, EvaluationRecord):
                self.history.evaluations.append(event)
                for callback in callbacks:
                    callback.on_evaluation(self, event)
            elif isinstance(event, StepPosition):
                stops = pause(event)
                if stops:
                    self._state.progress = event.progress()
            else:
                stops = self._end_epoch(event, test, callbacks)
                if self.progress.epoch < drained:
                    for callback in callbacks:
                        callback.on_epoch_begin(self, self.progress.epoch)
            return stops

        # A diverging loss raises `NonFiniteLossError` in the step.
        with np.errstate(over="ignore", invalid="ignore"):
            steps = EpochSteps(self.engine, loaded, self._state, take, test)
            stops = steps.train(train, pauses=bool(pausing))
        if stops:
            return True
        rate = self.history.epochs[-1].learning_rate
        return pause(StepPosition(self.step, 0, rate, lambda: self.progress))

    def _until_drained(self, train: DataSplit, per_epoch: int) -> list[list[Minibatch]]:
        """The minibatches of the rest of the epoch, and of the later ones before the pipeline drains."""
        start, every = self.progress, 1 if self.layout.exact else self.drain_every
        stop = min(self.last_epoch, ceil(start.epoch / every) * every)
        lr, multiplier = self.optimizer.lr, self.schedule.multiplier
        epochs: list[list[Minibatch]] = []
        step, done = start.step, start.minibatches
        for epoch in range(start.epoch, stop + 1):
            order = epoch_order(train.samples, self.seed, epoch, self.shuffle)
            batches = list(minibatches(order, self.batch_size))[done:]
            steps = range(step, step + len(batches))
            rates = [lr * multiplier(number, per_epoch, self.last_step) for number in steps]
            epochs.append(self.engine.make_minibatches(train, batches, rates, first=step))
            step, done = steps.stop, 0
        if self.grid.size > 1:
            from hybridnn.training.rank_comparison import require_same_rates

            rates = [minibatch.rate for of_epoch in epochs for minibatch in of_epoch]
            require_same_rates(self.grid.world, range(start.step, step), rates)
        return epochs

    def _end_epoch(self, result: EpochResult, test: DataSplit | None, callbacks: Sequence[Callback]) -> bool:
        """Evaluate an epoch and add it to the history; whether a callback of any rank ends the training. Collective."""
        progress, metrics = result.progress, None
        if test is not None and (progress.epoch % self.evaluate_every == 0 or progress.epoch == self.last_epoch):
            metrics = self.engine.evaluate(test)
        self.engine.require_finite(metrics, progress.step)
        names = ("loss", "accuracy", "r2", "roc_auc", "average_precision")
        found: dict[str, Any] = {f"validation_{name}": getattr(metrics, name, None) for name in names}
        loss = progress.loss_sum / progress.samples if progress.samples else nan
        record = EpochRecord(progress.step, progress.epoch, loss, result.learning_rate, **found, **asdict(result.speed))
        self._state.in_step = True  # not interrupted between these lines
        self.history.measured.append(result.measured)
        self.history.epochs.append(record)
        self._state.progress = progress.next_epoch()
        self._state.end_step()
        for callback in callbacks:
            callback.on_epoch_end(self, record)
        stops = np.array([self.stop_training], np.int64)
        if callbacks:
            self.grid.world.allreduce(stops, "max")
        return bool(stops[0])

    def free(self) -> None:
        """As `TrainedNetwork.free`; also ends the stall watchdog, and NCCL unless the caller provided the device."""
        super().free()
        self.end_watch()
        if self._owns_device:
            self.grid.disconnect()

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

    @collective
    def restore(
        self, read: Callable[[Sequence[ModelChunk], Sequence[OptimizerState]], None], progress: Progress
    ) -> None:
        """Go on from a checkpoint with its progress, written on any grid; collective.

        `read`, such as `Checkpoint.read_into`, fills the weights and the optimizer state of this rank; its errors are
        raised on all ranks. Records of later steps leave the history.
        """
        self._require_replaceable("restore")
        self.engine.restore(lambda: read(self.engine.chunks, self.engine.states))
        self._state.progress, self._state.incomplete = progress, ""
        self.history = self.history.before(progress)


def _largest_product(model: MLP, batch_size: int, grid: ProcessGrid) -> int:
    """Multiply-adds of this rank's largest matrix product."""
    weights = max(layer.inputs * layer.outputs for layer in model.layers)
    return weights * -(-batch_size // grid.batch) // grid.model
