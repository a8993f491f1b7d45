"""The trainer: one code path from a single process to every process grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, isfinite, sqrt
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.partition import block_bounds, block_slice
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.errors import DataError, NonFiniteLossError, SettingError
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.nn.learning_rates import Constant, LearningRateSchedule
from hybridnn.nn.losses import loss_gradient, resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer, new_state
from hybridnn.nn.parameters import check_weights
from hybridnn.parallel.distribution import DISTRIBUTIONS, make_distributor
from hybridnn.parallel.layer_split import MODEL_SPLITS
from hybridnn.parallel.stage import Stage
from hybridnn.parallel.workspace import StageArrays, Workspace
from hybridnn.training.history import EpochRecord, History, StepRecord
from hybridnn.training.metrics import Metrics, MetricSums
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
        self.seed, self.shuffle, self.clip_norm = seed, shuffle, clip_norm
        self.log_every, self.evaluate_every = log_every, evaluate_every
        self.history = History()
        self.step = 0
        self._distribution = distribution
        self._distributor = make_distributor(self.grid, distribution)
        self._stage = Stage(model.layers, self.grid, model_split, np.dtype(dtype), overlap)
        if initial_weights is None:
            self._stage.layout.initialize(self._stage.weights, seed)
        else:
            self.load_weights(initial_weights)
        self._state = new_state(self.optimizer, self._stage.weights)
        self._capacity = ceil(self.batch_size / self.grid.batch)
        self._workspace: Workspace | None = None
        self._loss_name = ""

    # -- training ----------------------------------------------------------------------------------------------------

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
            loss = self._train_step(train, indices, rate)
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
        metrics = None if test is None else self._evaluate(test)
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

    def _train_step(self, train: Part, indices: NDArray[np.int64], rate: float) -> float:
        """One update; returns the mean loss over the global minibatch, before it."""
        stage = self._stage
        arrays = self._fetch(train, indices)
        stage.forward(arrays)
        self._loss(arrays, len(indices))
        stage.backward(arrays)
        loss = float(stage.loss[0]) / len(indices)
        if not isfinite(loss):
            raise NonFiniteLossError(self._describe_divergence(loss, rate))
        gradient = stage.gradient[:-1]
        if self.clip_norm is not None:
            norm = sqrt(stage.squared_norms(gradient).sum())
            if norm > self.clip_norm:
                kernels.scale(gradient, self.clip_norm / norm)
        start = self.grid.recorder.begin("update")
        self.optimizer.update(stage.weights, gradient, self._state, rate)
        self.grid.recorder.end_compute("update", start)
        self.step += 1
        return loss

    # -- using what was trained --------------------------------------------------------------------------------------

    def evaluate(self, x: Any, y: Array | None = None) -> Metrics:
        """Loss and accuracy or R² on samples; every sample counts once.

        Parameters
        ----------
        x, y
            As for `fit`.
        """
        return self._evaluate(self._part(x, y, "data"))

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
        outputs = np.zeros((len(x), self.model.sizes[-1]), self._stage.weights.dtype)
        workspace = self._stage.workspace(self._capacity, classification=False)
        for start in range(0, len(x), self.batch_size):
            block = range(start, min(start + self.batch_size, len(x)))
            mine = block[block_slice(len(block), self.grid.batch, self.grid.batch_rank)]
            arrays = workspace.arrays(len(mine))
            arrays.samples[...] = x[mine.start : mine.stop]
            self._stage.forward(arrays)
            outputs[mine.start : mine.stop] = arrays.outputs.T
        # Every sample was computed by one batch part; the others hold zeros.
        self.grid.batch_group.allreduce(outputs)
        return outputs

    def weights(self) -> dict[str, Array]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, on every rank."""
        return self._stage.whole_parameters(self._stage.weights)

    def optimizer_slots(self) -> dict[str, dict[str, Array]]:
        """The optimizer's arrays by slot, each as global arrays named like the parameters, on every rank."""
        return {name: self._stage.whole_parameters(flat) for name, flat in self._state.slots.items()}

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        """Take the weights from global arrays, the same on every rank.

        Raises
        ------
        DataError
            If an array is missing or has another shape than the model's.
        """
        check_weights(self.model, weights, "initial weights")
        self._stage.load(weights)

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return sqrt(self._stage.squared_norms(self._stage.gradient[:-1]).sum())

    def gradients(self) -> dict[str, Array]:
        """Gradient of the mean loss over the last global minibatch, as global arrays named like the parameters."""
        return self._stage.whole_parameters(self._stage.gradient[:-1])

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations on this rank."""
        stage = self._stage
        slots = sum(slot.nbytes for slot in self._state.slots.values()) + self._state.scratch.nbytes
        return stage.weights.nbytes + stage.gradient.nbytes + slots + (self._workspace.nbytes if self._workspace else 0)

    # -- how the above is done ---------------------------------------------------------------------------------------

    def _part(self, x: Any, y: Array | None, what: str) -> Part:
        part = make_part(self.grid, self._distribution, self.model, x, y, what, self._stage.weights.dtype)
        self._loss_name = resolve_loss(self.model, part.task)
        return part

    def _fetch(self, part: Part, indices: NDArray[np.int64]) -> StageArrays:
        """This rank's block of a global minibatch, in the arrays of the workspace."""
        if self._workspace is None:
            self._workspace = self._stage.workspace(self._capacity, part.task == "classification")
        first, end = block_bounds(len(indices), self.grid.batch, self.grid.batch_rank)
        arrays = self._workspace.arrays(end - first)
        self._distributor.fetch(part.rows, indices, arrays.samples, arrays.targets)
        return arrays

    def _loss(self, arrays: StageArrays, samples: int) -> None:
        loss_gradient(
            self._loss_name,
            arrays.outputs,
            arrays.targets,
            arrays.columns,
            samples,
            arrays.output_gradient,
            self._stage.loss,
        )

    def _evaluate(self, part: Part) -> Metrics:
        sums = MetricSums(self.model.sizes[-1], part.task == "classification")
        for indices in minibatches(np.arange(part.samples), self.batch_size):
            arrays = self._fetch(part, indices)
            self._stage.forward(arrays)
            self._loss(arrays, len(indices))
            sums.add(arrays.outputs, arrays.targets, float(self._stage.loss[0]))
        return sums.total(self.grid.batch_group)

    def _describe_divergence(self, loss: float, rate: float) -> str:
        norms = np.sqrt(self._stage.squared_norms(self._stage.weights))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        return (
            f"the loss became {loss} in step {self.step + 1} at learning rate {rate:g}; "
            f"norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data"
        )


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
