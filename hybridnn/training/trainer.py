"""The trainer: one code path from a single process to every process grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.errors import DataError, SettingError
from hybridnn.nn.learning_rates import Constant, LearningRateSchedule
from hybridnn.nn.losses import resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer
from hybridnn.nn.parameters import check_weights
from hybridnn.parallel.distribution import DISTRIBUTIONS
from hybridnn.parallel.layer_split import MODEL_SPLITS
from hybridnn.training.engine import Engine
from hybridnn.training.history import EpochRecord, History, StepRecord
from hybridnn.training.metrics import Metrics
from hybridnn.training.part import Part, make_part
from hybridnn.training.sampling import epoch_order, minibatches

__all__ = ["Trainer"]

Array = NDArray[Any]
"""Arrays of the public interface are (samples, features)."""


class Trainer:
    """Trains an `MLP` on a process grid.

    Collective: every rank of the grid makes the same trainer and calls the same methods.

    Parameters
    ----------
    model : MLP
    optimizer : Optimizer
        `SGD` with its defaults unless given.
    grid : ProcessGrid, optional
        All ranks of the job as batch ranks by default.
    batch_size : int
        Samples of a minibatch, over all ranks.
    schedule : LearningRateSchedule
        Factor on the optimizer's rate by update.
    seed : int
        Of the initial weights and of the order of samples.
    dtype : {"float32", "float64"}
    shuffle : bool
        Draw a new order of the samples every epoch.
    clip_norm : float, optional
        Scale the gradient down to this global norm where it is longer.
    model_split : {"columns", "alternating"}
        How layers are split over the model axis.
    overlap : bool
        Let messages travel while the backward pass computes.
    distribution : {"local", "scatter", "scatter-broadcast"}
        How minibatches reach the ranks. With the last two only rank 0 needs data; the others may pass None.
    log_every : int
        Steps between two `StepRecord`.
    evaluate_every : int
        Epochs between two evaluations; the last epoch is always evaluated.
    initial_weights : mapping, optional
        Global arrays ``layers.<i>.weight`` and ``.bias`` to start from.

    Raises
    ------
    SettingError, GridError, DataError
        Where a setting is not allowed, the model does not fit the grid, or the weights do not fit the model.

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
        batch_size: int = 100,
        schedule: LearningRateSchedule | None = None,
        seed: int = 0,
        dtype: DTypeLike = "float32",
        shuffle: bool = True,
        clip_norm: float | None = None,
        model_split: str = "columns",
        overlap: bool = True,
        distribution: str = "local",
        log_every: int = 10,
        evaluate_every: int = 1,
        initial_weights: Mapping[str, Array] | None = None,
    ) -> None:
        _check_settings(batch_size, seed, dtype, clip_norm, model_split, distribution, log_every, evaluate_every)
        self.model = model
        self.optimizer: Optimizer = optimizer if optimizer is not None else SGD()
        self.grid = grid if grid is not None else ProcessGrid()
        self.threads = limit_blas_threads(self.grid)
        self.batch_size = int(batch_size)
        self.schedule: LearningRateSchedule = schedule if schedule is not None else Constant()
        self.seed, self.shuffle = seed, shuffle
        self.log_every, self.evaluate_every = log_every, evaluate_every
        self.history = History()
        self._distribution = distribution
        self._engine = Engine(
            model,
            self.optimizer,
            self.grid,
            batch_size=self.batch_size,
            dtype=dtype,
            model_split=model_split,
            overlap=overlap,
            distribution=distribution,
            clip_norm=clip_norm,
        )
        if initial_weights is None:
            self._engine.stage.layout.initialize(self._engine.stage.weights, seed)
        else:
            self.load_weights(initial_weights)

    def fit(
        self,
        x: Any,
        y: Array | None = None,
        *,
        epochs: int,
        validation: tuple[Any, Array | None] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
        on_epoch: Callable[[EpochRecord], None] | None = None,
    ) -> History:
        """Train for a number of epochs.

        Parameters
        ----------
        x : array_like, shape (samples, features), or Rows
            Samples, or rows of a data set, which bring their targets.
        y : array_like, shape (samples,) or (samples, outputs), optional
            Integers are labels of classes; floats are numbers to approximate.
        epochs : int
            Passes over the samples.
        validation : tuple, optional
            Samples and targets, as `x` and `y`, to evaluate on.
        on_step, on_epoch : callable, optional
            Called on every rank with each record.

        Returns
        -------
        History
            All records of this trainer so far.

        Raises
        ------
        DataError
            If the data do not fit the model, or hold numbers that are not finite.
        NonFiniteLossError
            If the loss becomes infinite or not a number; the weights are those before that step.
        """
        if epochs < 1:
            raise SettingError("training.epochs", epochs, "1 or more")
        train = self._part(x, y, "training data")
        test = None if validation is None else self._part(*validation, "test data")
        per_epoch = ceil(train.samples / self.batch_size)
        first = len(self.history.epochs) + 1
        updates = self.step + epochs * per_epoch
        for epoch in range(first, first + epochs):
            evaluated = test if epoch % self.evaluate_every == 0 or epoch == first + epochs - 1 else None
            # A diverging loss is found and explained by the step itself.
            with np.errstate(over="ignore", invalid="ignore"):
                record = self._train_epoch(train, evaluated, epoch, per_epoch, updates, on_step)
            self.history.epochs.append(record)
            if on_epoch is not None:
                on_epoch(record)
        return self.history

    def _train_epoch(
        self,
        train: Part,
        test: Part | None,
        epoch: int,
        per_epoch: int,
        updates: int,
        on_step: Callable[[StepRecord], None] | None,
    ) -> EpochRecord:
        order = epoch_order(train.samples, self.seed, epoch, self.shuffle)
        before, start = self.grid.recorder.totals, perf_counter()
        loss_sum, rate = 0.0, self.optimizer.lr
        for indices in minibatches(order, self.batch_size):
            rate = self.optimizer.lr * self.schedule.factor(self.step, per_epoch, updates)
            loss = self._engine.train(train, indices, rate)
            loss_sum += loss * len(indices)
            if self.step % self.log_every == 0:
                record = StepRecord(self.step, epoch, loss, rate)
                self.history.steps.append(record)
                if on_step is not None:
                    on_step(record)
        seconds = perf_counter() - start
        spent = self.grid.recorder.totals - before
        sent = np.array([spent.bytes_sent], np.int64)
        self.grid.world.allreduce(sent)
        metrics = None if test is None else self._engine.evaluate(test)
        return EpochRecord(
            step=self.step,
            epoch=epoch,
            train_loss=loss_sum / train.samples,
            learning_rate=rate,
            test_loss=None if metrics is None else metrics.loss,
            test_accuracy=None if metrics is None else metrics.accuracy,
            test_r2=None if metrics is None else metrics.r2,
            samples_per_second=train.samples / seconds,
            compute_seconds=seconds - spent.communication_seconds,
            communication_seconds=spent.communication_seconds,
            bytes_sent=int(sent[0]),
        )

    def evaluate(self, x: Any, y: Array | None = None) -> Metrics:
        """Loss and accuracy or R² on samples; every sample counts once.

        Parameters
        ----------
        x, y
            As for `fit`.
        """
        return self._engine.evaluate(self._part(x, y, "data"))

    def predict(self, x: Array) -> Array:
        """Outputs of the network.

        Parameters
        ----------
        x : array_like, shape (samples, features)
            The same on every rank.

        Returns
        -------
        ndarray, shape (samples, outputs)
            On every rank; for classification the logits, whose largest is the predicted class.
        """
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != self.model.sizes[0]:
            raise DataError(f"samples of shape {x.shape}: the model takes (samples, {self.model.sizes[0]})")
        return self._engine.predict(x)

    def weights(self) -> dict[str, Array]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, on every rank."""
        return self._engine.stage.whole_parameters(self._engine.stage.weights)

    def optimizer_slots(self) -> dict[str, dict[str, Array]]:
        """The optimizer's arrays by slot, each as global arrays named like the parameters, on every rank."""
        return {name: self._engine.stage.whole_parameters(flat) for name, flat in self._engine.state.slots.items()}

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        """Take the weights from global arrays, the same on every rank.

        Raises
        ------
        DataError
            If an array is missing or has another shape than the model's.
        """
        check_weights(self.model, weights, "initial weights")
        self._engine.stage.load(weights)

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return self._engine.gradient_norm()

    def gradients(self) -> dict[str, Array]:
        """Gradient of the mean loss over the last global minibatch, as global arrays named like the parameters."""
        return self._engine.stage.whole_parameters(self._engine.stage.gradient[:-1])

    @property
    def step(self) -> int:
        """Updates done so far."""
        return self._engine.state.updates

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations on this rank."""
        return self._engine.memory_bytes

    def _part(self, x: Any, y: Array | None, what: str) -> Part:
        part = make_part(self.grid, self._distribution, self.model, x, y, what, self._engine.stage.weights.dtype)
        resolve_loss(self.model, part.task)  # refuses a loss that does not belong to the data before the first step
        return part


def _check_settings(
    batch_size: int,
    seed: int,
    dtype: DTypeLike,
    clip_norm: float | None,
    model_split: str,
    distribution: str,
    log_every: int,
    evaluate_every: int,
) -> None:
    for name, value in (("batch_size", batch_size), ("log_every", log_every), ("evaluate_every", evaluate_every)):
        if int(value) != value or value < 1:
            raise SettingError(f"training.{name}", value, "a whole number, 1 or more")
    if seed < 0:
        raise SettingError("training.seed", seed, "0 or more")
    if np.dtype(dtype) not in (np.dtype("float32"), np.dtype("float64")):
        raise SettingError("training.dtype", str(dtype), "float32 or float64")
    if clip_norm is not None and not clip_norm > 0:
        raise SettingError("training.clip_norm", clip_norm, "a number above 0")
    if model_split not in MODEL_SPLITS:
        raise SettingError("parallel.model_split", model_split, "allowed are " + ", ".join(MODEL_SPLITS))
    if distribution not in DISTRIBUTIONS:
        raise SettingError("data.distribution", distribution, "allowed are " + ", ".join(DISTRIBUTIONS))
