"""A network on a process grid: evaluation, prediction, weights, gradients and memory; and callbacks of its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce, wraps
from inspect import signature
from math import sqrt
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.errors import SettingError, StateError
from hybridnn.nn.kernels import HostArray
from hybridnn.nn.mlp import resolve_loss
from hybridnn.nn.parameters import check_weights, parameter_shapes
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import OPTIONS, TrainConfig
from hybridnn.training.data_split import DataSplit, as_samples, make_split
from hybridnn.training.engine import Engine
from hybridnn.training.records import (
    EpochRecord,
    EvaluationRecord,
    History,
    Progress,
    StepPosition,
    StepRecord,
    TrainingState,
)
from hybridnn.utils.checks import nearest

if TYPE_CHECKING:
    from hybridnn.data import Rows
    from hybridnn.pipeline.execution.chunk_runtime import MemoryBreakdown
    from hybridnn.training.metrics import Metrics

OTHER_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "save": "numpy.savez('weights.npz', **trainer.weights()) writes its weights",
        "load": "trainer.load_weights(numpy.load('weights.npz')) reads its weights",
        "score": "did you mean evaluate?",
        "train": "did you mean fit?",
        "compile": "Trainer(model, optimizer) is ready to fit",
        **dict.fromkeys(("lr", "learning_rate"), "optimizer.lr is the rate, and set_learning_rate changes it"),
    }
)
"""What to call in place of methods that other libraries have."""

FIXED = frozenset((*OPTIONS, "model", "optimizer", "schedule"))
MADE = frozenset(("config", "grid", "engine", "layout", "device", "threads"))
"""Attributes that are set once, by the constructor."""
STATE = ("history", "stop_training", "has_validation", "last_epoch", "last_step", "end_watch")
"""Attributes that can be set later."""

OTHER_HOOKS = (("start", "begin"), ("on_batch", "on_train_batch"), ("train_epoch", "epoch"), ("fit", "train"))
"""Words in the hooks of Keras and Lightning, and ours."""

Method = TypeVar("Method", bound=Callable[..., Any])


def collective(method: Method) -> Method:
    """Decorator of a collective method: `StateError` if another thread is in one, or after `free`."""

    @wraps(method)
    def entered(self: TrainedNetwork, *values: Any, **given: Any) -> Any:
        with self._state.entered(method.__name__):
            if "engine" not in self.__dict__:
                raise self._freed()
            return method(self, *values, **given)

    return entered  # type: ignore[return-value]


if TYPE_CHECKING:  # type checkers and editors see the options as attributes, and no others
    _Options = TrainConfig
else:

    class _Options:
        """The options of the training as attributes."""

        def __getattr__(self, name: str) -> Any:
            """An option of the training."""
            if name == "engine":
                raise self._freed()
            if name in FIXED:
                return getattr(self.config, name)
            raise self._lacks(name, (*FIXED, *dir(type(self))))

        def __setattr__(self, name: str, value: object) -> None:
            """Set an attribute: `AttributeError` for those that describe the training, and for unknown ones."""
            if name in FIXED or (name in MADE and name in self.__dict__):
                raise AttributeError(f"{name} is fixed; make another {type(self).__name__} for {name}={value!r}")
            if not (name.startswith("_") or name in MADE or name in STATE or hasattr(type(self), name)):
                raise self._lacks(name, STATE)
            super().__setattr__(name, value)

        def _lacks(self, name: str, known: Iterable[str]) -> AttributeError:
            hint = "" if name.startswith("_") else OTHER_METHODS.get(name) or nearest(name, known)
            return AttributeError(f"a {type(self).__name__} has no attribute {name!r}" + (f": {hint}" if hint else ""))


class TrainedNetwork(_Options):
    """A network on a process grid; every method is collective.

    Attributes
    ----------
    config : TrainConfig
        Model, optimizer and options. Each is an attribute of the network too, which cannot be set.
    history : History
        Records of the training.
    engine : Engine
        Weights and optimizer state of this rank; until `free`.
    stop_training : bool
        A callback of `Trainer.fit` sets it to end the training after the epoch.
    last_epoch, last_step : int
        Epoch and step after which `Trainer.fit` returns, unless a callback ends it.
    has_validation : bool
        Whether `Trainer.fit` evaluates epochs.
    """

    def __init__(self, config: TrainConfig, grid: ProcessGrid, engine: Engine) -> None:
        self.config, self.grid, self.engine = config, grid, engine
        self.history = History()
        self._state = TrainingState(grid.lock if grid.size > 1 else RLock())
        self.stop_training = self.has_validation = False
        self.last_epoch = self.last_step = 0

    @property
    def progress(self) -> Progress:
        """Progress of the training, after every step; in callbacks after a drain, that of the weights they see."""
        return self._state.progress

    @property
    def step(self) -> int:
        """Updates done so far: ``progress.step``."""
        return self._state.step

    def set_learning_rate(self, lr: float) -> None:
        """Train with another base learning rate; call it on every rank.

        In a callback of `fit` it takes effect in the next epoch, or after the next drain of the pipeline. The state of
        the optimizer stays. Raises `SettingError` for a rate that is not above 0.
        """
        optimizer = replace(self.optimizer, lr=lr)  # type: ignore[type-var]  # every optimizer is a dataclass
        self.__dict__["config"] = replace(self.config, optimizer=optimizer)

    def __getstate__(self) -> NoReturn:
        how = "save weights(), and give them to load_weights() or to initial_weights of another one"
        raise TypeError(f"a {type(self).__name__} with its ranks cannot be pickled or copied: {how}")

    @collective
    def evaluate(self, x: Any, y: HostArray | None = None) -> Metrics:
        """Loss and accuracy or R² on samples, given as for `fit`; every sample counts once.

        Raises `DataError` as `fit`: after a training, the targets must be of its task.
        """
        return self.engine.evaluate(self._split(x, y, "data", self._state.task, cache=False))

    @collective
    def predict(self, x: HostArray) -> HostArray:
        """Outputs of the network.

        Parameters
        ----------
        x : array_like or sparse, shape (samples, features)
            Finite, and the same on every rank.

        Returns
        -------
        ndarray, shape (samples, outputs)
            On every rank; for classification the logits, the largest of which is that of the predicted class.

        Raises
        ------
        DataError
            On every rank: `x` does not fit the model, or differs between ranks.
        """
        self._state.require_complete_step()
        samples = agree(self.grid.world, lambda: as_samples(x, self.model.sizes[0], self.engine.dtype))
        self._require_same_arrays("predict", {"samples": samples})
        return self.engine.predict(samples)

    @collective
    def predict_proba(self, x: HostArray) -> HostArray:
        """Probabilities of the classes, shape (samples, classes), on every rank: the softmax of `predict`.

        Raises
        ------
        SettingError
            If the model is trained for a regression.
        DataError
            As for `predict`.
        """
        resolve_loss(self.model, "classification")
        if self._state.task == "regression":
            allowed = "the training is a regression, which has no probabilities; classes have integer labels"
            raise SettingError("model.loss", self.model.loss, f"{allowed}, as y.astype(int)")
        from scipy.special import softmax

        probabilities: HostArray = softmax(self.predict(x), axis=1)
        return probabilities

    @collective
    def weights(self) -> dict[str, HostArray]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, on every rank."""
        return self.engine.collect([chunk.weights for chunk in self.engine.chunks])

    @collective
    def optimizer_slots(self) -> dict[str, dict[str, HostArray]]:
        """Optimizer state by slot name, each slot as global arrays by name of parameter, on every rank."""
        return {
            name: self.engine.collect([state.slots[name] for state in self.engine.states])
            for name in self.optimizer.slot_names
        }

    @collective
    def load_weights(self, weights: Mapping[str, Any], *, reset_optimizer: bool = False) -> None:
        """Set the weights from global arrays, which must be the same on every rank.

        Parameters
        ----------
        weights : mapping
            As returned by `weights`; also tensors of PyTorch.
        reset_optimizer : bool
            Begin the training anew: with the optimizer state of a new trainer, at step 0 of epoch 1, with an empty
            history and for data of any task. By default only the weights change.

        Raises
        ------
        DataError
            On every rank: an array is missing, does not fit the model, or differs between ranks.
        StateError
            With `reset_optimizer`, if `fit` is running.
        """
        if reset_optimizer:
            self._require_replaceable("load_weights(weights, reset_optimizer=True)")
        else:
            self._state.require_complete_step()
        weights = agree(self.grid.world, lambda: check_weights(self.model, weights, "initial weights"))
        self._require_same_arrays("initial weights", {name: weights[name] for name in parameter_shapes(self.model)})
        self.engine.load(weights)
        if reset_optimizer:
            self.engine.reset_optimizer()
            self._state.progress, self._state.incomplete = Progress(), ""
            self.history = History()

    @collective
    def gradient_norm(self) -> float:
        """Global norm of the last gradient, after clipping, every parameter counted once."""
        return sqrt(self.engine.kernels.to_host(self.engine.squared_gradient_norm())[0])

    @collective
    def gradients(self) -> dict[str, HostArray]:
        """Gradient of the mean loss over the last minibatch, after clipping, as global arrays by name of parameter."""
        return self.engine.collect([chunk.replica.full_gradient() for chunk in self.engine.chunks])

    def free(self) -> None:
        """Free shared memory, samples on the device and CUDA graphs; methods that need them raise `StateError` then."""
        with self._state.entered("free"):
            self._state.require_no_fit("free")
            if "engine" in self.__dict__:
                self.__dict__.pop("engine").free()

    def _freed(self) -> StateError:
        return StateError(f"this {type(self).__name__} was freed: make another one")

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations on this rank."""
        return self.engine.memory_held.total

    @collective
    def stage_memory(self, task: str) -> tuple[MemoryBreakdown, ...]:
        """Memory for training on data of `task`, as maxima over the ranks of every stage; collective."""
        return self.engine.memory(task).largest_of_stages(self.grid)

    def _require_replaceable(self, method: str) -> None:
        """Raise `StateError` where `method` cannot replace weights and optimizer state."""
        self._state.require_no_fit(method)
        if self.grid.pipeline > 1:  # messages of an interrupted step would be taken for those of the next
            self._state.require_complete_step()

    def _require_same_arrays(self, what: str, arrays: Mapping[str, HostArray]) -> None:
        if self.grid.size > 1:
            from hybridnn.training.rank_comparison import array_facts, require_same_data

            require_same_data(self.grid.world, what, partial(array_facts, arrays, self.engine.dtype))

    def _splits(
        self, x: Any, y: HostArray | None, validation: tuple[Any, HostArray | None] | Rows | None
    ) -> tuple[DataSplit, DataSplit | None]:
        """The training split, and the validation split or None; collective.

        Rank 0 says whether there is one if it scatters the minibatches; else all ranks must have samples, or none.
        """
        train = self._split(x, y, "training data", self._state.task)
        given = np.array([validation is not None], np.int64)
        if self.config.distribution != "local":
            self.grid.world.broadcast(given)
        elif self.grid.size > 1:
            from hybridnn.training.rank_comparison import require_same_data

            require_same_data(self.grid.world, "validation data", lambda: {"samples": "some" if given[0] else "none"})
        if not given[0]:
            return train, None
        samples, targets = validation if isinstance(validation, (tuple, list)) else (validation, None)
        return train, self._split(samples, targets, "validation data", train.task)

    def _split(self, x: Any, y: HostArray | None, what: str, task: str, *, cache: bool = True) -> DataSplit:
        self._state.require_complete_step()
        how = (self.grid, self.config.distribution, self.model)
        split = make_split(*how, x, y, what, self.engine.dtype, task)
        resolve_loss(self.model, split.task)  # raises before the first step if the loss does not fit the data
        return self.engine.place(split, x, what if cache else None)


class Callback:
    """Base class of callbacks for `Trainer.fit`, whose methods do nothing.

    Every rank calls them, in the order of the list, so they may call collective methods of the trainer. The records are
    equal on all ranks, but for the times of the rank. ``trainer.stop_training = True`` ends the training after the
    epoch, on all ranks if one of them sets it. With `drain_every` they are called when the pipeline has drained, for
    one epoch after the other, and the value after the last of these epochs counts.

    Another method ``on_…``, or the argument `logs` of Keras, is a `TypeError`.
    """

    if TYPE_CHECKING:  # overriding them is an error for type checkers too
        on_batch_begin: None
        on_batch_end: None
        on_epoch_start: None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for name, hook in vars(cls).items():
            if name.startswith("on_") and name not in hooks and callable(hook):
                ours = reduce(lambda text, words: text.replace(*words), OTHER_HOOKS, name)
                raise TypeError(f"{cls.__name__}.{name} is no hook: {nearest(ours, hooks) or ', '.join(hooks)}")
            if name in hooks and "logs" in signature(hook).parameters:
                arguments = ", ".join(signature(getattr(Callback, name)).parameters)
                raise TypeError(f"{cls.__name__}.{name} does not have the arguments of Keras, but ({arguments})")

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Called before the first epoch of `fit`."""

    def on_epoch_begin(self, trainer: TrainedNetwork, epoch: int) -> None:
        """Called before an epoch, counted from 1; an incomplete epoch begins again."""

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Called with every logged step (`log_every`); with an asynchronous method, after the drain."""

    def on_evaluation(self, trainer: TrainedNetwork, record: EvaluationRecord) -> None:
        """Called after an evaluation between two steps (`evaluate_every_steps`)."""

    def between_steps(self, trainer: TrainedNetwork, reached: StepPosition) -> bool:
        """Called when the pipeline is empty: between two steps, and after an epoch with its record written.

        With an asynchronous method it is called after a drain only. It may write a checkpoint. If it returns True,
        which it does on every rank or on none, `fit` returns.
        """
        return False

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Called after an epoch and its evaluation."""

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """Called after the last epoch of `fit`."""
