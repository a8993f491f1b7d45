"""The trainer: one code path from a single process to every process grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.checkpoints.manifest import Origin, Progress
from hybridnn.checkpoints.reading import Checkpoint
from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.comm.mpi import require_communicator
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.nn.learning_rates import Constant, LearningRateSchedule
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import Pipelining, TrainConfig
from hybridnn.training.data_split import DataSplit, epoch_order, minibatches
from hybridnn.training.device import DeviceOptions, TrainingDevice, settle_device
from hybridnn.training.engine import make_engine
from hybridnn.training.epoch import EpochHooks, StepPosition, train_epoch
from hybridnn.training.equal_settings import require_same_rates, require_same_settings, software, trainer_facts
from hybridnn.training.pipelining import settle_pipeline
from hybridnn.training.records import EpochRecord, History, StepRecord
from hybridnn.training.trained_network import Array, TrainedNetwork
from hybridnn.utils.checks import require_number, require_whole

if TYPE_CHECKING:
    from typing_extensions import Self


class Trainer(TrainedNetwork):
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
    overlap : bool or "auto"
        Let messages travel while the backward pass computes; ``"auto"``: where that can pay, see `overlaps`.
    shared_replicas : bool or "auto"
        Whether the batch ranks of a node keep one copy of the weights and of the optimizer's state, of which each
        updates a part: see `settle_sharing`. The training is the same.
    wire_dtype : {"same", "bfloat16", "float16"}
        What gradients are rounded to where they are summed between nodes, if not sent as they are computed: see
        `hybridnn.parallel.compressed_allreduce`. Without a batch group on several nodes it means nothing.
    device : str, DeviceOptions or TrainingDevice
        What computes: ``"cpu"``, ``"gpu"``, or ``"auto"``, a GPU where every rank finds one; see `settle_device`.
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
    stall_seconds : float
        End the job, and name the rank that did not arrive and the line of the script where it is, when a rank waits for
        others and no rank has finished anything for so long; 0 waits for ever. Longer work of one rank, while the
        others wait for it, is announced by `busy`.

    Raises
    ------
    EnvironmentProblem
        Where a GPU, or a transport, is asked for and cannot be had.
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
        overlap: bool | str = "auto",
        shared_replicas: bool | str = "auto",
        wire_dtype: str = "same",
        device: str | DeviceOptions | TrainingDevice = "auto",
        distribution: str = "local",
        log_every: int = 10,
        evaluate_every: int = 1,
        pipelining: Pipelining | None = None,
        initial_weights: Mapping[str, Array] | None = None,
        stall_seconds: float = 60.0,
    ) -> None:
        config = TrainConfig(
            model,
            optimizer if optimizer is not None else SGD(),
            schedule if schedule is not None else Constant(),
            batch_size=batch_size,
            seed=seed,
            dtype=dtype,
            shuffle=shuffle,
            clip_norm=clip_norm,
            model_split=model_split,
            overlap=overlap,
            shared_replicas=shared_replicas,
            wire_dtype=wire_dtype,
            distribution=distribution,
            log_every=log_every,
            evaluate_every=evaluate_every,
            pipelining=pipelining or Pipelining(),
        )
        self._start(config, grid, device, initial_weights, stall_seconds)

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        *,
        grid: ProcessGrid | None = None,
        device: str | DeviceOptions | TrainingDevice = "auto",
        initial_weights: Mapping[str, Array] | None = None,
        stall_seconds: float = 60.0,
    ) -> Self:
        """Make a trainer of a configuration; the other parameters are those of `Trainer`."""
        trainer = cls.__new__(cls)
        trainer._start(config, grid, device, initial_weights, stall_seconds)
        return trainer

    def _start(
        self,
        config: TrainConfig,
        grid: ProcessGrid | None,
        device: str | DeviceOptions | TrainingDevice,
        initial_weights: Mapping[str, Array] | None,
        stall_seconds: float,
    ) -> None:
        grid = grid if grid is not None else ProcessGrid()
        require_communicator(grid.node_comm)
        require_number("output.stall_seconds", stall_seconds, 0, float("inf"), "a finite number, 0 or more")
        self._end_watch = None if grid.stall_watchdog is None else grid.stall_watchdog.start(self, stall_seconds)
        others = {"initial_weights": initial_weights is not None, "device": device}
        require_same_settings(grid.world, lambda: software(grid.node_group) | trainer_facts(config.items() | others))
        config = config.checked()  # after the comparison, so that all ranks find an error or none does
        self.batch_size, self.schedule = config.batch_size, config.schedule
        self.seed, self.shuffle, self.model_split = config.seed, config.shuffle, config.model_split
        self.log_every, self.evaluate_every = config.log_every, config.evaluate_every
        self.threads = limit_blas_threads(grid.node_group, _largest_product(config.model, self.batch_size, grid))
        self.history, self.progress = History(), Progress()
        self.device = settle_device(device, grid)
        self._settled_device = self.device is not device
        self.plan = settle_pipeline(config, grid)
        engine = make_engine(config, grid, self.plan, self.device.kernels, self.device.record)
        self.overlap = engine.overlap
        super().__init__(config, grid, engine)
        if initial_weights is None:
            self._engine.arrays.initialize(config.seed)
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
        stops: Callable[[StepPosition], bool] | None = None,
    ) -> History:
        """Train for a number of epochs; one that was left before its end is the first of them.

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
        stops : callable, optional
            Asked on every rank, with how far the training has come, whether to leave it there: after every step, or
            with an asynchronous method after every epoch, and after an epoch when its record is written. It may write
            a checkpoint meanwhile. The answer must be the same on every rank.

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
            are then those before that step, or, with an asynchronous pipeline method, those at the end of its epoch;
            on a GPU they are later ones, as a loss is looked at when it is logged, and at the end of the epoch.
        """
        require_same_settings(self.grid.world, lambda: self._fit_facts(epochs, stops))
        require_whole("training.epochs", epochs, 1)
        train, test = self._parts(x, y, validation)
        per_epoch = ceil(train.samples / self.batch_size)
        last = self.progress.epoch + epochs - 1
        updates = self.step - self.progress.minibatches + epochs * per_epoch
        while self.progress.epoch <= last:
            epoch = self.progress.epoch
            evaluated = test if epoch % self.evaluate_every == 0 or epoch == last else None
            # A diverging loss is found and explained by the step itself.
            with np.errstate(over="ignore", invalid="ignore"):
                record = self._train_epoch(train, evaluated, per_epoch, updates, on_step, stops)
            if record is None:
                break
            self.history.epochs.append(record)
            if on_epoch is not None:
                on_epoch(record)
            if stops is not None and stops(StepPosition(self.step, 0, lambda: self.progress)):
                break
        return self.history

    def _fit_facts(self, epochs: int, stops: Callable[[StepPosition], bool] | None) -> dict[str, str]:
        """What must be the same on all ranks to train on; a script may have changed the attributes."""
        names = "optimizer", "schedule", "batch_size", "seed", "shuffle", "log_every", "evaluate_every"
        now: dict[str, Any] = {name: getattr(self, name) for name in names}
        return trainer_facts(
            now | {"epochs": epochs, "epoch": self.progress.epoch, "step": self.step, "stops": stops is not None}
        )

    def _train_epoch(
        self,
        train: DataSplit,
        test: DataSplit | None,
        per_epoch: int,
        updates: int,
        on_step: Callable[[StepRecord], None] | None,
        stops: Callable[[StepPosition], bool] | None,
    ) -> EpochRecord | None:
        """Train on what is left of the epoch; None if it was left before its end."""
        before = self.progress
        order = epoch_order(train.samples, self.seed, before.epoch, self.shuffle)
        batches = list(minibatches(order, self.batch_size))[before.minibatches :]
        steps = range(self.step, self.step + len(batches))
        rates = [self.optimizer.lr * self.schedule.factor(step, per_epoch, updates) for step in steps]
        require_same_rates(self.grid.world, steps, rates)

        def log(record: StepRecord) -> None:
            self.history.steps.append(record)
            if on_step is not None:
                on_step(record)

        # With an asynchronous method the pipeline is not empty between steps.
        hooks = EpochHooks(log, self.log_every, stops if self.plan.exact else None)
        loaded = self._engine.loader.minibatches(train, batches, rates, first=self.step)
        done = train_epoch(self._engine, self.grid, train, loaded, before, hooks)
        if done.stopped:
            self.progress = done.progress
            return None
        self.history.measured.append(done.measured)
        metrics = None if test is None else self._engine.evaluate(test)
        self._engine.require_finite(metrics)
        self.progress = done.progress.next_epoch()
        loss = done.progress.loss_sum / done.progress.samples
        return EpochRecord.of(self.step, before.epoch, loss, rates[-1], metrics, done.speed)

    def free(self) -> None:
        """As `TrainedNetwork.free`; ends NCCL's connections too, unless the device was settled by somebody else.

        From then on it is not noticed if ranks stand still.
        """
        super().free()
        self.end_watch()
        if self._settled_device:
            self.grid.disconnect()

    def end_watch(self) -> None:
        """Leave it unnoticed from now on if ranks stand still."""
        if self._end_watch is not None:
            self._end_watch()

    def busy(self, what: str, at_most: float | None = None) -> AbstractContextManager[None]:
        """Announce long work of this rank, such as ``"plotting"``, during which others may wait without a stall.

        Parameters
        ----------
        what : str
            What the rank is busy with; shown where the job stands still nevertheless.
        at_most : float, optional
            Seconds after which it counts as a stall; ten times `stall_seconds` by default.
        """
        watch = self.grid.stall_watchdog
        return nullcontext() if watch is None else watch.busy(what, at_most)

    def origin(self, data: str) -> Origin:
        """Description of this training that its checkpoints carry, so that a later training can be compared with it.

        Parameters
        ----------
        data : str
            Identity of the data.
        """
        return Origin(
            model=repr(self.model),
            optimizer=repr(self.optimizer),
            data=data,
            seed=self.seed,
            shuffle=self.shuffle,
            stages=self.grid.stages,
            model_split=self.model_split,
            partition=self.plan.layers,
            chunks=self.plan.chunks,
            method=self.plan.label,
        )

    def checkpoint_writer(
        self, folder: Path, data: str, keep: int = 3, *, grid: ProcessGrid | None = None
    ) -> CheckpointWriter:
        """Make a writer of this training's checkpoints; collective.

        Parameters
        ----------
        folder : Path
            Where they go, each in a folder of its own.
        data : str
            Identity of the data, for their manifests.
        keep : int
            The newest ones, which stay.
        grid : ProcessGrid, optional
            Of the ranks that write, by default all; with the batch axis alone any of them hold everything.
        """
        engine, origin = self._engine, self.origin(data)
        return CheckpointWriter(folder, grid or self.grid, self.model, engine.stages, engine.states, origin, keep=keep)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written, on whatever grid; collective.

        Raises
        ------
        DataError
            On every rank: it is of another network or optimizer, or cannot be read.
        """
        self._engine.restore(lambda: checkpoint.read_into(self._engine.stages, self._engine.states))
        self.progress = checkpoint.manifest.progress


def _largest_product(model: MLP, batch_size: int, grid: ProcessGrid) -> int:
    """Multiply-adds of this rank's largest matrix product."""
    weights = max(layer.inputs * layer.outputs for layer in model.layers)
    return weights * -(-batch_size // grid.batch) // grid.model
