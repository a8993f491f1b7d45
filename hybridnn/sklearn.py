"""Estimators for scikit-learn: `MLPClassifier` and `MLPRegressor`, on one process, on ranks of it, or under a launcher.

Parameters that ``sklearn.neural_network`` has too mean the same there. scikit-learn is optional.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from math import inf, sqrt
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import is_child
from hybridnn.data import as_rows
from hybridnn.data.rows import require_unmasked
from hybridnn.errors import DataError, EnvironmentProblem, HybridnnError, warn_caller
from hybridnn.in_process import run_ranks
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer, optimizers
from hybridnn.parallel.grid import ProcessGrid, all_ranks_group
from hybridnn.training.callbacks import EarlyStopping
from hybridnn.training.records import MONITORS, EpochRecord
from hybridnn.training.trained_network import TrainedNetwork
from hybridnn.training.trainer import Trainer
from hybridnn.utils.checks import MOST, require_choice, require_number, require_whole, with_advice

if TYPE_CHECKING:
    from typing_extensions import Self

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    needed = "hybridnn.sklearn needs scikit-learn 1.6 or later: pip install 'hybridnn[sklearn]'"
    raise EnvironmentProblem(needed) from error

__all__ = ["MLPClassifier", "MLPRegressor"]

Array = NDArray[Any]
Trained = tuple[dict[str, Array], list[EpochRecord], bool]  # weights, records of the epochs, and whether it was ended
SOLVERS: Mapping[str, Callable[..., Optimizer]] = MappingProxyType({kind.name: kind for kind in optimizers()})
LARGEST_AUTO_BATCH = 200
SAMPLES = {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}  # those that `validate_data` passes

OPTIONS_OF_TRAINER = ("batch_size", "shuffle", "clip_norm", "method", "microbatches")
OF_OPTIMIZER_AND_GRID = ("solver", "momentum", "nesterovs_momentum", "weight_decay", "batch", "model", "pipeline")
KEPT_FOR_PARTIAL_FIT = (*OF_OPTIMIZER_AND_GRID, *OPTIONS_OF_TRAINER)
"""Parameters with which a trainer is made. Between two calls of `partial_fit` another value makes a new one."""


class _Stopping(EarlyStopping):
    """scikit-learn's rule, with sums that round alike: every better value is the best, and gains are those over it."""

    loss_factor = 1.0

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        value = self.loss_factor * record.train_loss if self.monitor == "train_loss" else record.monitored(self.monitor)
        assert value is not None  # every epoch is evaluated
        sign = MONITORS[self.monitor]
        self._without = self._without + 1 if sign * value < sign * self.best + self.min_delta else 0
        if sign * (value - self.best) > 0:
            self.best, self.best_epoch = value, record.epoch
            if self.restore_best_weights:
                self._weights = trainer.weights()
        if self._without > self.patience:
            self.stopped_epoch, trainer.stop_training = record.epoch, True


ADVICE = {
    "alpha": "weight_decay is the factor of the weights",
    "class_weight": "Trainer has it",
    "lr": "did you mean learning_rate_init?",
}


def draw(random: np.random.RandomState) -> int:
    """A seed for the order of the samples."""
    return int(random.randint(2**31 - 1))


@with_advice(ADVICE)
@dataclass(eq=False, repr=False)
class _MLP(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters and training of both estimators."""

    hidden_layer_sizes: Sequence[int] | int = (100,)
    activation: str = "relu"
    _: KW_ONLY
    solver: str = "adam"
    learning_rate_init: float = 0.001
    momentum: float = 0.9
    nesterovs_momentum: bool = True
    weight_decay: float = 0.0
    initializer: str = "glorot"
    batch_size: int | str = "auto"
    max_iter: int = 200
    shuffle: bool = True
    random_state: Any = None
    tol: float = 1e-4
    n_iter_no_change: float = 10
    early_stopping: bool = False
    validation_fraction: float = 0.1
    residual: bool = False
    clip_norm: float | None = None
    verbose: bool = False
    ranks: int | None = None
    batch: int | None = None
    model: int = 1
    pipeline: int = 1
    method: str = "1f1b"
    microbatches: int | None = None

    # without annotations, which would make them parameters
    _score_of_epochs = "validation_r2"
    _loss_factor = 1.0  # from the training loss to that of scikit-learn
    _trainer = cast("Trainer | None", None)

    @abstractmethod
    def _encoded(self, y: Array) -> Array:
        """Targets as the network takes them; sets what `predict` needs to know of them."""

    @abstractmethod
    def _encoded_again(self, y: Array) -> Array:
        """The same after the first call of `partial_fit`."""

    @property
    @abstractmethod
    def _outputs_of_network(self) -> int: ...

    def fit(self, X: Any, y: Any) -> Self:
        """Train a network from new initial weights.

        Parameters
        ----------
        X : array_like or sparse, shape (samples, features)
            Sparse samples are made dense one minibatch at a time.
        y : array_like, shape (samples,) or, for a regression, (samples, outputs)
            Under a launcher, both are the same on every rank.

        Raises
        ------
        ValueError
            If the data cannot be used.
        HybridnnError
            As `Trainer`; under a launcher also if the data of another rank cannot be used, or are not the same.
        """
        X, y = self._prepared(X, y, self._encoded, is_first=True)
        self._drop_trainer()
        random = self._random()
        initial, validation = self._initial_weights(random, X.dtype), None
        if self.early_stopping:
            how = {"test_size": self.validation_fraction, "random_state": random}
            how["stratify"] = y if len(getattr(self, "classes_", ())) == 2 else None
            X, x_validation, y, y_validation = train_test_split(X, y, **how)
            if len(y_validation) < 2:
                raise ValueError("the validation part has 1 sample: give more samples or a larger validation_fraction")
            validation = x_validation, y_validation
        weights, records, was_ended = self._train(X, y, draw(random), self.max_iter, validation, initial)
        self._keep(weights, records, reset=True)
        # Processes of a pool leave the warning to the one that reports their scores, and ranks to the first.
        if not was_ended and not is_child() and (self._trainer is None or self._trainer.grid.rank == 0):
            warn_caller(f"the training did not converge in max_iter={self.max_iter} epochs", ConvergenceWarning)
        return self

    def _partial_fit(self, X: Any, y: Any, encode_first: Callable[[Array], Array]) -> Self:
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True")
        is_first = not hasattr(self, "weights_")
        X, y = self._prepared(X, y, encode_first if is_first else self._encoded_again, is_first=is_first)
        random = self._random() if is_first else check_random_state(0)  # of which a training that goes on draws nothing
        initial = self._initial_weights(random, X.dtype) if is_first else self.weights_
        weights, records, _ = self._train(X, y, draw(random), 1, None, initial, is_first=is_first)
        self._keep(weights, records, reset=is_first)
        return self

    def _prepared(self, X: Any, y: Any, encode: Callable[[Array], Array], *, is_first: bool) -> tuple[Array, Array]:
        """Validated samples and encoded targets; under a launcher, the same on every rank, or an error on all."""

        def prepare() -> tuple[Array, Array]:
            samples, targets = self._validated(X, y, reset=is_first)
            if not is_first:
                self._require_fitted_network()
            return samples, encode(targets)

        if self.ranks is not None or (world := all_ranks_group()).size == 1:
            return prepare()
        from hybridnn.training.rank_comparison import require_same_rows

        samples, targets = agree(world, prepare, errors=(HybridnnError, TypeError, ValueError))
        rows, dtype = as_rows(samples, targets), samples.dtype
        about = {"element type": dtype.name, "fitted before": "no" if is_first else "yes"}
        about["classes"] = ", ".join(map(str, getattr(self, "classes_", ())))
        require_same_rows(world, "training data", rows, dtype, complete=True, about=about)
        return samples, targets

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        require_whole("max_iter", self.max_iter, 1)
        require_choice("loss", getattr(self, "loss", "squared_error"), ("squared_error",))
        require_choice("solver", self.solver, SOLVERS)
        if self.batch_size != "auto":
            require_whole("batch_size", self.batch_size, 1)
        require_number("learning_rate_init", self.learning_rate_init, above=0)
        require_number("tol", self.tol, at_least=0)
        if self.early_stopping:
            require_number("validation_fraction", self.validation_fraction, above=0, below=1)
        require_unmasked(X, "X")
        require_unmasked(y, "y")
        how = {**SAMPLES, "multi_output": True, "y_numeric": not isinstance(self, ClassifierMixin), "reset": reset}
        X, y = validate_data(self, X, y, **how)
        return X, y

    def _require_fitted_network(self) -> None:
        network = self._network()
        for name in ("sizes", "activation", "residual"):
            before, now = getattr(self._fitted, name), getattr(network, name)
            if before != now:
                raise ValueError(f"{name} = {now!r}: the network was fitted with {before!r}; call fit, or use a clone")

    def _random(self) -> np.random.RandomState:
        """The generator of the random state, the same on every rank, also without a random state."""
        random: np.random.RandomState = check_random_state(self.random_state)
        if self.ranks is not None or isinstance(self.random_state, Integral) or (world := all_ranks_group()).size == 1:
            return random
        seed = np.array([draw(random)], np.int64)
        world.broadcast(seed)
        return np.random.RandomState(seed[0])

    def _initial_weights(self, random: np.random.RandomState, dtype: Any) -> dict[str, Array] | None:
        """Weights and biases as scikit-learn draws them; None if the `MLP` draws them, for another initializer."""
        network, weights = self._network(), {}
        if network.initializer != "glorot":
            return None
        is_binary = len(getattr(self, "classes_", ())) == 2
        factor = 2.0 if network.activation == "sigmoid" else 6.0
        widths = [*network.sizes[:-1], 1 if is_binary else network.sizes[-1]]
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            bound = sqrt(factor / (inputs + outputs))
            weights[f"layers.{index}.weight"] = random.uniform(-bound, bound, (inputs, outputs)).T.astype(dtype)
            weights[f"layers.{index}.bias"] = random.uniform(-bound, bound, outputs).astype(dtype)
        if is_binary:  # the one output of scikit-learn is the difference of the two
            for name in list(weights)[-2:]:
                weights[name] = np.concatenate([-weights[name] / 2, weights[name] / 2])
        return weights

    @property
    def _rate(self) -> float:
        """The rate for the gradients of `Trainer`, for a regression of the mean over outputs, not of half the sum."""
        return self.learning_rate_init * (getattr(self, "n_outputs_", 2) / 2 if self.solver == "sgd" else 1.0)

    def _optimizer(self) -> Optimizer:
        settings: dict[str, Any] = {"lr": self._rate}
        if self.solver == "sgd":
            settings |= {"momentum": self.momentum, "nesterov": self.nesterovs_momentum and self.momentum > 0}
        if self.weight_decay:
            settings["weight_decay"] = self.weight_decay
        return SOLVERS[self.solver](**settings)

    def _network(self) -> MLP:
        hidden = self.hidden_layer_sizes
        widths = list(hidden) if isinstance(hidden, Sequence | np.ndarray) else [hidden]
        loss = "cross_entropy" if self._score_of_epochs == "validation_accuracy" else "mse"
        sizes = [self.n_features_in_, *widths, self._outputs_of_network]
        activation = "sigmoid" if self.activation == "logistic" else self.activation
        return MLP(sizes, activation, residual=self.residual, loss=loss, initializer=self.initializer)

    def _make_trainer(self, X: Array, seed: int, weights: Mapping[str, Array] | None) -> Trainer:
        grid = ProcessGrid(batch=self.batch, model=self.model, pipeline=self.pipeline)
        options: dict[str, Any] = {name: getattr(self, name) for name in OPTIONS_OF_TRAINER}
        if isinstance(self.batch_size, str):
            options["batch_size"] = min(LARGEST_AUTO_BATCH, X.shape[0])
        how: dict[str, Any] = {"grid": grid, "seed": seed, "dtype": X.dtype, "initial_weights": weights}
        return Trainer(self._network(), self._optimizer(), **how, **options)

    def _train(
        self, X: Array, y: Array, seed: int, epochs: int, validation: Any, weights: Any, *, is_first: bool = True
    ) -> Trained:
        """Train from `weights` on the ranks of this process, or on those of the job.

        A trainer of the job's ranks is kept for `partial_fit`, with the state of its optimizer.
        """
        if is_first:
            self._fitted = self._network()
        if self.ranks is not None:

            def on_rank(_: Any) -> Trained:
                trainer = self._make_trainer(X, seed, weights)
                try:
                    return self._fit_on(trainer, X, y, epochs, validation)
                finally:
                    trainer.free()

            trained: Trained = run_ranks(self.ranks, on_rank).results[0]
            return trained
        made_with = [getattr(self, name) for name in KEPT_FOR_PARTIAL_FIT]
        if getattr(self, "_made_with", None) != made_with:
            self._drop_trainer()
        if self._trainer is None:
            self._trainer = self._make_trainer(X, seed, weights)
            self._made_with = made_with
        self._trainer.set_learning_rate(self._rate)
        try:
            return self._fit_on(self._trainer, X, y, epochs, validation)
        except DataError:  # before the first step
            raise
        except BaseException:
            self._trainer = None  # goes on from `weights_`; not freed, which is collective
            raise

    def _fit_on(self, trainer: Trainer, X: Array, y: Array, epochs: int, validation: Any) -> Trained:
        is_validated = validation is not None
        monitor = self._score_of_epochs if is_validated else "train_loss"
        patience: Any = MOST if self.n_iter_no_change == inf else self.n_iter_no_change
        stopping = _Stopping(monitor, patience, self.tol, restore_best_weights=is_validated)
        stopping.loss_factor = self._loss_factor
        before, show = len(trainer.history.epochs), bool(self.verbose)
        history = trainer.fit(X, y, epochs=epochs, validation=validation, callbacks=[stopping], progress=show)
        return trainer.weights(), history.epochs[before:], stopping.stopped_epoch > 0

    def _keep(self, weights: dict[str, Array], records: Sequence[EpochRecord], *, reset: bool) -> None:
        self.weights_ = weights
        losses = [self._loss_factor * record.train_loss for record in records]
        self.loss_curve_: list[float] = losses if reset else self.loss_curve_ + losses
        self.loss_ = self.loss_curve_[-1]
        self.n_iter_ = len(losses)
        scores = [record.metric for record in records if record.metric is not None]
        self.validation_scores_ = scores if self.early_stopping else None
        self.best_validation_score_ = max(scores) if self.early_stopping else None
        self.best_loss_ = None if self.early_stopping else min(self.loss_curve_)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there are weights: a training that fails sets other attributes."""
        return hasattr(self, "weights_")

    @property
    def coefs_(self) -> list[Array]:
        """Weights of the layers, shape (inputs, outputs) each."""
        check_is_fitted(self)
        return [array.T for name, array in self.weights_.items() if name.endswith(".weight")]

    @property
    def intercepts_(self) -> list[Array]:
        """Biases of the layers."""
        check_is_fitted(self)
        return [array for name, array in self.weights_.items() if name.endswith(".bias")]

    def _outputs(self, X: Any) -> Array:
        """Outputs of the network, computed by this process alone."""
        check_is_fitted(self)
        require_unmasked(X, "X")
        X = validate_data(self, X, **SAMPLES, reset=False)
        dtype = self.coefs_[0].dtype

        def predict(_: Any) -> Array:
            settings: dict[str, Any] = {"batch_size": LARGEST_AUTO_BATCH, "dtype": dtype}
            trainer = Trainer(self._fitted, SGD(momentum=0.0), initial_weights=self.weights_, **settings)
            try:
                return trainer.predict(X)
            finally:
                trainer.free()

        outputs: Array = run_ranks(1, predict).results[0]
        return outputs

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn: sparse samples are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _drop_trainer(self) -> None:
        if self._trainer is not None:
            self._trainer.free()
            self._trainer = None

    def __getstate__(self) -> dict[str, Any]:
        """Settings, weights and results, without the ranks: what is unpickled predicts anywhere."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_trainer"}


class MLPClassifier(ClassifierMixin, _MLP):  # type: ignore[misc]
    """Classifier: a multi-layer perceptron with a softmax at its output.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, or int
        Width of every hidden layer.
    activation : {"relu", "tanh", "sigmoid", "logistic", "selu", "identity"}
        Of the hidden layers; ``"logistic"`` is ``"sigmoid"``.
    solver : str
        Name of an optimizer, as ``"adam"``, ``"sgd"`` or ``"adamw"``.
    learning_rate_init : float
        Learning rate.
    momentum, nesterovs_momentum, shuffle
        As in scikit-learn.
    weight_decay : float
        Factor of weights and biases in the gradient, or, with decoupled decay as of ``"adamw"``, in the update.
    initializer : {"glorot", "auto", "he", "lecun"}
        ``"glorot"``: weights and biases that scikit-learn draws from the same random state; else those of `MLP`.
    batch_size : int or "auto"
        Samples of a minibatch over all ranks; ``"auto"``: all samples, but at most 200.
    max_iter : int
        Most epochs.
    random_state : int, RandomState or None
        Of the initial weights, the order of the samples and the validation part.
    tol : float
        Least gain of an epoch over the best loss, or over the best score of the validation part.
    n_iter_no_change : int or inf
        The training ends after more consecutive epochs that gain less.
    early_stopping, validation_fraction
        Keep a fraction of the samples to validate, and end with the weights of the epoch with the best score on it.
    residual, clip_norm
        As of `MLP` and of `Trainer`.
    verbose : bool
        Whether to show epochs and losses.
    ranks : int or None
        Train on so many ranks of this process, one at a time; None: on the ranks of the job, which is one process
        unless it is started by ``mpirun`` or ``srun``. Every rank then makes the same calls.
    batch, model, pipeline, method, microbatches
        As of `ProcessGrid` and of `Trainer`.

    Attributes
    ----------
    classes_ : ndarray, shape (classes,)
    weights_ : dict
        Global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.
    loss_curve_ : list of float
        Mean training loss of every epoch.
    validation_scores_ : list of float
        Score on the validation part after every epoch; None without `early_stopping`.
    loss_, best_loss_, best_validation_score_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from hybridnn.sklearn import MLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> MLPClassifier((16,), learning_rate_init=0.02, random_state=0, ranks=2).fit(X, y).score(X, y) > 0.95
    True
    """

    _score_of_epochs = "validation_accuracy"

    def _encoded(self, y: Array) -> Array:
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        return np.asarray(labels, np.int64)

    def _encoded_again(self, y: Array) -> Array:
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        unknown = np.setdiff1d(y, self.classes_).tolist()
        if unknown:
            raise ValueError(f"y has the class {unknown[0]!r}, which is not among classes: {self.classes_.tolist()}")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    @property
    def _outputs_of_network(self) -> int:
        return len(self.classes_)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Train for one epoch on some samples, from the weights so far.

        The state of the optimizer is kept between calls, but for ranks of this process (`ranks`) and after pickling.
        Parameters that were set in between take effect; with others than `learning_rate_init` the state begins anew.

        Parameters
        ----------
        X, y
            As for `fit`.
        classes : array_like, optional
            All classes; needed in the first call.

        Raises
        ------
        ValueError
            If the data cannot be used, have other classes, the first call has no `classes`, or a parameter of the
            network was changed.
        """

        def encoded(y: Array) -> Array:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit")
            self.classes_ = np.unique(classes)
            return self._encoded_again(y)

        return self._partial_fit(X, y, encoded)

    def predict(self, X: Any) -> Array:
        """Class of every sample, shape (samples,)."""
        outputs = self._outputs(X)
        chosen: Array = self.classes_[np.argmax(outputs, axis=1)]
        return chosen

    def predict_proba(self, X: Any) -> Array:
        """Probability of every class, shape (samples, classes), in the order of `classes_`."""
        probabilities: Array = softmax(self._outputs(X), axis=1)
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba`."""
        logarithms: Array = log_softmax(self._outputs(X), axis=1)
        return logarithms


@dataclass(eq=False, repr=False)
class _Loss:
    """The parameter that stands before those of `_MLP`."""

    loss: str = "squared_error"


@with_advice(ADVICE)
@dataclass(eq=False, repr=False)
class MLPRegressor(RegressorMixin, _MLP, _Loss):  # type: ignore[misc]
    """Regressor: a multi-layer perceptron trained for the mean squared error.

    The first parameter is `loss`, always ``"squared_error"``, as in scikit-learn from 1.7 on. The others are those of
    `MLPClassifier`, and so are the attributes but for `classes_`. With `early_stopping` the score is R².

    Examples
    --------
    >>> import numpy as np
    >>> from hybridnn.sklearn import MLPRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> network = MLPRegressor(hidden_layer_sizes=16, learning_rate_init=0.02, random_state=0)
    >>> network.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.95
    True
    """

    _loss_factor = 0.5

    def _encoded(self, y: Array) -> Array:
        y = np.asarray(y, np.float64)
        y = y.reshape(len(y), -1)
        self.n_outputs_ = y.shape[1]
        return y

    def _encoded_again(self, y: Array) -> Array:
        y = np.asarray(y, np.float64).reshape(len(y), -1)
        if y.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {y.shape[1]} outputs, but this estimator was fitted with {self.n_outputs_}")
        return y

    @property
    def _outputs_of_network(self) -> int:
        return self.n_outputs_

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Train for one epoch on some samples, from the weights so far; see `MLPClassifier.partial_fit`."""
        return self._partial_fit(X, y, self._encoded)

    def predict(self, X: Any) -> Array:
        """Outputs for every sample, shape (samples,), or (samples, outputs) if there are several."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self.n_outputs_ == 1 else outputs

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn: several outputs are allowed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
