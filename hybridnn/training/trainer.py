"""The trainer: one code path from a single process to every process grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.checks import require_choice, require_number, require_whole
from hybridnn.comm.agreement import agree, same_on_all, same_text_on_all
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
from hybridnn.training.engine import make_engine
from hybridnn.training.epoch import train_epoch
from hybridnn.training.history import EpochRecord, History, StepRecord
from hybridnn.training.metrics import Metrics
from hybridnn.training.part import Part, as_samples, holds_validation, make_part
from hybridnn.training.pipelining import Pipelining, settle_pipeline
from hybridnn.training.sampling import epoch_order, minibatches
from hybridnn.training.stage_memory import StageMemory, memory_of_stages

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
    pipelining : Pipelining, optional
        How a grid with several pipeline stages trains; ``1f1b`` with its defaults unless given.
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
        pipelining: Pipelining | None = None,
        initial_weights: Mapping[str, Array] | None = None,
    ) -> None:
        require_whole("training.batch_size", batch_size, 1)
        require_whole("output.log_every", log_every, 1)
        require_whole("training.evaluate_every", evaluate_every, 1)
        require_whole("training.seed", seed, 0)
        require_choice("training.dtype", getattr(dtype, "__name__", str(dtype)), ("float32", "float64"))
        if clip_norm is not None:
            require_number("training.clip_norm", clip_norm, 0, float("inf"), "a finite number above 0", open_ends="(")
        require_choice("parallel.model_split", model_split, MODEL_SPLITS)
        require_choice("data.distribution", distribution, DISTRIBUTIONS)
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
        pipelining = pipelining or Pipelining()
        counts = self.batch_size, seed, log_every, evaluate_every
        alike = (model, counts, np.dtype(dtype), shuffle, clip_norm, model_split, overlap, distribution, pipelining)
        if not same_text_on_all(self.grid.world, repr(alike)):
            raise SettingError("settings of this rank", alike, "the same on every rank")
        self.plan = settle_pipeline(
            pipelining,
            model,
            self.grid,
            batch_size=self.batch_size,
            dtype=np.dtype(dtype),
            optimizer=self.optimizer,
            clip_norm=clip_norm,
            distribution=distribution,
        )
        self._engine = agree(
            self.grid.world,
            lambda: make_engine(
                model,
                self.optimizer,
                self.grid,
                self.plan,
                batch_size=self.batch_size,
                dtype=dtype,
                model_split=model_split,
                overlap=overlap,
                distribution=distribution,
                clip_norm=clip_norm,
            ),
        )
        if initial_weights is None:
            self._engine.arrays.initialize(seed)
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
            Called on every rank with each record; with an asynchronous pipeline method, steps come at the end of
            their epoch.

        Returns
        -------
        History
            All records of this trainer so far.

        Raises
        ------
        DataError
            If the data do not fit the model, or hold numbers that are not finite.
        NonFiniteLossError
            If the loss becomes infinite or not a number, or, after an epoch, the weights or the test loss. The weights
            are then those before that step, or, with an asynchronous pipeline method, those at the end of its epoch.
        """
        require_whole("training.epochs", epochs, 1)
        train = self._part(x, y, "training data")
        given = holds_validation(self.grid, self._distribution, validation is not None)
        test_x, test_y = (None, None) if validation is None else validation
        test = self._part(test_x, test_y, "test data") if given else None
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
        batches = list(minibatches(order, self.batch_size))
        steps = range(self.step, self.step + len(batches))
        rates = [self.optimizer.lr * self.schedule.factor(step, per_epoch, updates) for step in steps]

        def logged(record: StepRecord) -> None:
            self.history.steps.append(record)
            if on_step is not None:
                on_step(record)

        done = train_epoch(self._engine, self.grid, train, epoch, batches, rates, self.log_every, logged)
        loss, speed, measured = done
        self.history.measured.append(measured)
        metrics = None if test is None else self._engine.evaluate(test)
        self._engine.require_finite(metrics)
        return EpochRecord.of(self.step, epoch, loss, rates[-1], metrics, speed)

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

        Raises
        ------
        DataError
            On every rank: `x` does not fit the model, or the ranks were given different numbers of samples.
        """
        samples = agree(self.grid.world, lambda: as_samples(x, self.model.sizes[0]))
        if not same_on_all(self.grid.world, np.array([len(samples)], np.int64)):
            raise DataError(f"samples: the ranks were given different numbers of them, this one {len(samples)}")
        return self._engine.predict(samples)

    def weights(self) -> dict[str, Array]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, on every rank."""
        return self._engine.arrays.collect([stage.weights for stage in self._engine.stages])

    def optimizer_slots(self) -> dict[str, dict[str, Array]]:
        """The optimizer's arrays by slot, each as global arrays named like the parameters, on every rank."""
        return {
            name: self._engine.arrays.collect([state.slots[name] for state in self._engine.states])
            for name in self.optimizer.slot_names
        }

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        """Take the weights from global arrays, the same on every rank.

        Raises
        ------
        DataError
            On every rank: an array is missing, or is not what the model needs.
        """
        agree(self.grid.world, lambda: check_weights(self.model, weights, "initial weights"))
        self._engine.arrays.load(weights)

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, after clipping, every parameter counted once."""
        return self._engine.gradient_norm()

    def gradients(self) -> dict[str, Array]:
        """Gradient of the mean loss over the last minibatch, after clipping, as global arrays by name of parameter."""
        return self._engine.arrays.collect([stage.gradient[:-1] for stage in self._engine.stages])

    @property
    def step(self) -> int:
        """Updates done so far."""
        return self._engine.updates

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations on this rank."""
        return self._engine.memory_bytes

    def stage_memory(self, task: str) -> tuple[StageMemory, ...]:
        """What training on data of `task` takes on the fullest rank of every stage; collective."""
        return memory_of_stages(self.grid, self._engine.memory(task))

    def _part(self, x: Any, y: Array | None, what: str) -> Part:
        part = make_part(self.grid, self._distribution, self.model, x, y, what, self._engine.dtype)
        resolve_loss(self.model, part.task)  # refuses a loss that does not belong to the data before the first step
        return part
