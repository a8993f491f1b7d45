"""Estimators: scikit-learn's own checks, and the same network however many ranks train it."""

import copy
import importlib
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.neural_network as sk
from joblib import Parallel, delayed
from joblib.externals.loky import ProcessPoolExecutor
from mpi4py import MPI
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from hybridnn.errors import DataError, EnvironmentProblem, HybridnnError, NonFiniteLossError, SettingError
from hybridnn.sklearn import MLPClassifier, MLPRegressor, _Stopping
from reference.cases import assert_arrays_close, assert_arrays_same

IRIS = load_iris(return_X_y=True)
SHORT: dict[str, Any] = {"max_iter": 4, "random_state": 3, "batch_size": 30}
QUICK = {"hidden_layer_sizes": (8,), **SHORT}

IGNORED = ("ConvergenceWarning", "SkipTestWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::sklearn.exceptions.{name}") for name in IGNORED]


def regression(samples: int = 60) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((samples, 3))
    return x, np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2]], axis=1)


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_the_checks_of_scikit_learn_pass(kind: Any) -> None:
    outcomes = check_estimator(kind(hidden_layer_sizes=16, learning_rate_init=0.02, max_iter=30), on_fail=None)
    assert len(outcomes) > 40
    wrong = {item["check_name"]: item["exception"] for item in outcomes if item["status"] not in ("passed", "skipped")}
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_the_checks_pass_on_every_rank(comm: MPI.Intracomm, kind: Any) -> None:
    test_the_checks_of_scikit_learn_pass(kind)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_ranks_of_this_process_train_the_same_classifier(pipeline: int) -> None:
    alone = MLPClassifier(**QUICK).fit(*IRIS)
    ranks = MLPClassifier(**QUICK, ranks=4, pipeline=pipeline, model=2).fit(*IRIS)
    assert_arrays_close(ranks.weights_, alone.weights_, "weights")
    np.testing.assert_allclose(ranks.predict_proba(IRIS[0]), alone.predict_proba(IRIS[0]), atol=1e-10)


@pytest.mark.mpi(ranks=[2])
def test_every_rank_of_a_job_has_the_same_estimator(comm: MPI.Intracomm) -> None:
    alone = MLPClassifier(**QUICK, ranks=1).fit(*IRIS)
    found = MLPClassifier(**QUICK).fit(*IRIS)
    assert_arrays_close(found.weights_, alone.weights_, "weights")
    texts = comm.allgather(str(found.predict(IRIS[0]).tolist()))
    assert texts[0] == texts[1]
    unseeded = MLPClassifier(**QUICK | {"random_state": None}).fit(*IRIS)
    sums = comm.allgather(float(unseeded.weights_["layers.0.weight"].sum()))
    assert sums[0] == sums[1]
    with pytest.raises(DataError) as raised:
        MLPClassifier(**QUICK).fit(IRIS[0] + comm.rank, IRIS[1])
    assert len(str(raised.value).splitlines()) == 1


NAMES = np.array(["setosa", "versicolor", "virginica"])[IRIS[1]]
SKIPPED = 1  # a sample that is none of the 64 that `Trainer` compares


def with_other(array: Any, value: Any) -> Any:
    other = array.copy()
    other[SKIPPED] = value
    return other


OTHER_DATA: dict[str, tuple[Any, Any, str]] = {
    "one row": (with_other(IRIS[0], 9.0), NAMES, r"digest of inputs: rank 0 has \w+, rank 1 has"),
    "label names": (IRIS[0], np.char.replace(NAMES, "se", "A se"), "classes: rank 0 has setosa, v.*, rank 1 has A se"),
    "element type": (IRIS[0].astype(np.float32), NAMES, "rank 0 has"),
    "NaN": (with_other(IRIS[0], np.nan), NAMES, "Input X contains NaN"),
}


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize("what", OTHER_DATA)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_ranks_with_other_data_all_end_with_an_error(comm: MPI.Intracomm, method: str, what: str) -> None:
    estimator = MLPClassifier(**QUICK)
    classes = {"classes": np.unique(NAMES)} if method == "partial_fit" else {}
    x, y, message = OTHER_DATA[what]
    given, own = (IRIS[0], NAMES), classes
    if comm.rank == 1:
        given = x, y
        own = {"classes": np.unique(y)} if classes and what == "label names" else classes
    with pytest.raises((HybridnnError, ValueError), match=message):
        getattr(estimator, method)(*given, **own)
    getattr(estimator, method)(IRIS[0], NAMES, **classes)  # the ranks are still together


@pytest.mark.in_process(ranks=[2])
def test_ranks_that_went_different_ways_all_end_with_an_error(comm: MPI.Intracomm) -> None:
    x, y = regression()
    estimator = MLPRegressor(**QUICK).fit(x, y)
    with pytest.raises(HybridnnError, match="fitted before: rank 0 has yes, rank 1 has no"):
        (estimator if comm.rank == 0 else clone(estimator)).partial_fit(x, y)
    with pytest.raises((HybridnnError, ValueError), match="y has 1 outputs"):
        estimator.partial_fit(x, y[:, :1] if comm.rank == 0 else y)
    classifier = MLPClassifier(**QUICK)
    with pytest.raises((HybridnnError, ValueError), match="classes must be passed"):
        classifier.partial_fit(*IRIS, classes=[0, 1, 2] if comm.rank == 0 else None)


@pytest.mark.in_process(ranks=[1, 2])
def test_partial_fits_are_the_epochs_of_a_fit_and_keep_the_state_of_the_optimizer(comm: MPI.Intracomm) -> None:
    x, y = regression()
    settings = {**QUICK, "shuffle": False, "tol": 0.0}
    whole, parts = MLPRegressor(**settings, ranks=1).fit(x, y), MLPRegressor(**settings)
    for _ in range(4):
        parts.partial_fit(x, y)
    assert_arrays_close(parts.weights_, whole.weights_, "weights")
    assert parts.loss_curve_ == pytest.approx(whole.loss_curve_)


@pytest.mark.parametrize("ranks", [None, 2])
def test_sparse_samples_train_as_dense_ones(ranks: int | None) -> None:
    words = (IRIS[0] * 2).round().astype(str)
    sparse, dense = (
        make_pipeline(OneHotEncoder(sparse_output=kind), MLPClassifier(**QUICK, ranks=ranks)) for kind in (True, False)
    )
    for early in (False, True):
        for model in (sparse, dense):
            model.set_params(mlpclassifier__early_stopping=early).fit(words, IRIS[1])
        assert_arrays_close(sparse[-1].weights_, dense[-1].weights_, "weights")
        np.testing.assert_allclose(sparse.predict_proba(words), dense.predict_proba(words), atol=1e-12)


@pytest.mark.parametrize("call", ["fit", "partial_fit", "predict"])
def test_masked_samples_are_refused(call: str) -> None:
    masked, found = np.ma.masked_greater(IRIS[0], 6), MLPRegressor(**QUICK)
    if call == "predict":
        found.fit(*IRIS)
    with pytest.raises(DataError, match=r"X has \d+ masked values"):
        getattr(found, call)(masked, *((IRIS[1],) if call != "predict" else ()))
    if call != "predict":
        with pytest.raises(DataError, match="y has 50 masked values"):
            getattr(found, call)(IRIS[0], np.ma.masked_equal(IRIS[1], 2))


def through_pickle(estimator: Any) -> Any:
    return pickle.loads(pickle.dumps(estimator))


@pytest.mark.parametrize("copied", [through_pickle, copy.deepcopy])
@pytest.mark.parametrize("ranks", [None, 2])
def test_copies_predict_and_go_on(copied: Any, ranks: int | None) -> None:
    found = MLPClassifier(**QUICK, ranks=ranks).fit(*IRIS)
    other = copied(found)
    np.testing.assert_array_equal(other.predict_proba(IRIS[0]), found.predict_proba(IRIS[0]))
    assert len(other.partial_fit(*IRIS).loss_curve_) == len(found.loss_curve_) + 1
    assert not np.array_equal(other.coefs_[0], found.coefs_[0])


def test_the_tools_of_scikit_learn() -> None:
    model = make_pipeline(StandardScaler(), MLPClassifier((16,), learning_rate_init=0.02, max_iter=50, random_state=0))
    assert cross_val_score(model, *IRIS, cv=3).min() > 0.85
    grid = {"learning_rate_init": [1e-9, 0.02], "ranks": [None, 2]}
    search = GridSearchCV(MLPClassifier(**QUICK), grid, cv=2).fit(*IRIS)
    assert search.best_params_["learning_rate_init"] == 0.02
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_processes_of_joblib_fit_and_unpickle_without_mpi() -> None:
    import mpi4py.MPI  # as in a job

    found = MLPClassifier(**QUICK).fit(*IRIS)

    def elsewhere(fitted: Any) -> tuple[list[int], bool]:
        import sys

        return fitted.predict(IRIS[0]).tolist(), "mpi4py.MPI" in sys.modules

    expected = found.predict(IRIS[0]).tolist(), False
    assert mpi4py.MPI.Is_initialized()
    assert Parallel(n_jobs=2)(delayed(elsewhere)(found) for _ in range(2)) == [expected] * 2
    scores = cross_val_score(MLPClassifier(**QUICK, ranks=2), *IRIS, cv=2, n_jobs=2)
    np.testing.assert_allclose(scores, cross_val_score(MLPClassifier(**QUICK, ranks=2), *IRIS, cv=2))


def test_processes_of_a_pool_inherit_a_launch_but_are_no_ranks() -> None:
    def fit() -> tuple[Any, bool]:
        import sys

        return MLPClassifier(**QUICK).fit(*IRIS).weights_, "mpi4py.MPI" in sys.modules

    launch = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}
    with ProcessPoolExecutor(max_workers=1, env=launch) as pool:
        weights, used_mpi = pool.submit(fit).result(timeout=300)
    assert_arrays_close(weights, MLPClassifier(**QUICK).fit(*IRIS).weights_, "weights")
    assert not used_mpi


@pytest.mark.parametrize("ranks", [None, 2])
def test_parameters_set_between_partial_fits_take_effect_or_are_refused(ranks: int | None) -> None:
    def trained(**other: Any) -> Any:
        found = MLPClassifier(**QUICK, ranks=ranks).partial_fit(*IRIS, classes=[0, 1, 2])
        return found.set_params(**other).partial_fit(*IRIS)

    usual = trained()
    for other in ({"learning_rate_init": 0.1}, {"batch_size": 150}, {"solver": "sgd"}):
        assert not np.allclose(trained(**other).coefs_[0], usual.coefs_[0])
    with pytest.raises(ValueError, match=r"^activation = 'tanh': the network was fitted with 'relu'; call fit, or"):
        usual.set_params(activation="tanh").partial_fit(*IRIS)


@pytest.mark.in_process(ranks=[1, 2])
def test_a_learning_rate_set_between_partial_fits_keeps_the_state_of_the_optimizer(comm: MPI.Intracomm) -> None:
    x, y = regression()
    settings = {
        "momentum": 0.5,
        "nesterovs_momentum": False,
        "batch_size": 60,
        "random_state": 3,
        "initializer": "auto",
    }
    found = MLPRegressor(hidden_layer_sizes=8, solver="sgd", **settings)
    weights = [
        found.set_params(learning_rate_init=rate).partial_fit(x, y).coefs_[0] for rate in (1e-12, 1e-6, 1e-6, 2e-6)
    ]
    first, second, third = np.diff(weights, axis=0)  # of an all but constant gradient, so that the velocity is a sum
    np.testing.assert_allclose(second, first * 1.75 / 1.5, rtol=1e-3)
    np.testing.assert_allclose(third, first * 2 * 1.875 / 1.5, rtol=1e-3)


@pytest.mark.in_process(ranks=[1, 2])
def test_partial_fit_after_an_exception_goes_on_from_the_weights_before(comm: MPI.Intracomm) -> None:
    x, y = regression()
    found = MLPRegressor(hidden_layer_sizes=8, solver="sgd", batch_size=20, random_state=3).partial_fit(x, y)
    before = copy.deepcopy(found)
    with pytest.raises(NonFiniteLossError):
        found.partial_fit(1e18 * x, 1e18 * y)
    for estimator in (found, before):
        estimator.partial_fit(x[:30], y[:30])
    assert_arrays_same(found.weights_, before.weights_)
    for train in (MLPRegressor.fit, MLPRegressor.partial_fit):
        with pytest.raises(NonFiniteLossError):
            train(unfitted := clone(found), 1e18 * x, 1e18 * y)
        with pytest.raises(NotFittedError):
            unfitted.predict(x)


def test_fits_are_silent_unless_they_are_asked_to_speak(monkeypatch, capsys) -> None:
    logistic = MLPClassifier(**QUICK, activation="logistic", verbose=True).fit(*IRIS)
    assert "epoch 4/4, train loss" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert_arrays_close(MLPClassifier(**QUICK, activation="sigmoid").fit(*IRIS).weights_, logistic.weights_, "weights")
    assert not any(capsys.readouterr())


@pytest.mark.filterwarnings("always::sklearn.exceptions.ConvergenceWarning")
def test_a_search_of_many_fits_warns_once_at_its_line() -> None:
    with pytest.warns(ConvergenceWarning) as found:
        GridSearchCV(MLPClassifier(**QUICK), {"learning_rate_init": [0.1, 0.2]}, cv=2).fit(1e4 * IRIS[0], IRIS[1])
    assert [(warning.filename, warning.category) for warning in found] == [
        (__file__, UserWarning),
        (__file__, ConvergenceWarning),
    ]


ATTRIBUTES = ("n_iter_", "loss_", "best_loss_", "best_validation_score_", "validation_scores_", "loss_curve_")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("task", ["classes", "one output", "two outputs"])
def test_a_training_is_that_of_scikit_learn(task: str, dtype: Any) -> None:
    x, y = IRIS if task == "classes" else regression(200)
    x, y = x.astype(dtype), y[:, 0] if task == "one output" else y
    kind, other = (MLPClassifier, sk.MLPClassifier) if task == "classes" else (MLPRegressor, sk.MLPRegressor)
    found, expected = kind(max_iter=300, shuffle=False), other(max_iter=300, shuffle=False, alpha=0)
    rounded: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    settings = {"solver": "sgd", "hidden_layer_sizes": (8, 5), "random_state": 7}
    for early, activation, rate in [(True, "relu", 0.02), (False, "logistic", 0.1), (False, "tanh", 1e-300)]:
        how = {**settings, "early_stopping": early, "activation": activation, "learning_rate_init": rate}
        for estimator in (found, expected):
            estimator.set_params(**how).fit(x, y)
        for name in ATTRIBUTES:  # also those that a former fit had
            ours, theirs = getattr(found, name), getattr(expected, name)
            assert (ours is None) == (theirs is None), name
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, **rounded)
        for method in ("predict", "predict_proba", "predict_log_proba")[: 3 if task == "classes" else 1]:
            np.testing.assert_allclose(getattr(found, method)(x), getattr(expected, method)(x), **rounded)
    for ours, theirs in zip(found.coefs_ + found.intercepts_, expected.coefs_ + expected.intercepts_, strict=True):
        np.testing.assert_array_equal(ours, theirs)  # the initial ones, which this rate did not change
        assert ours.dtype == dtype


def test_a_training_that_does_not_converge_warns_and_one_that_does_ends() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=2 epochs"):
        MLPClassifier(max_iter=2).fit(*IRIS)
    assert MLPClassifier(learning_rate_init=1e-9, n_iter_no_change=2).fit(*IRIS).n_iter_ == 4


@pytest.mark.parametrize("early_stopping", [False, True])
def test_on_one_curve_both_stop_after_the_same_epoch(early_stopping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = "validation_accuracy" if early_stopping else "train_loss"
    theirs = sk.MLPRegressor(early_stopping=early_stopping, tol=0.1)
    curves = np.random.default_rng(0).integers(0, 10, (200, 40)) / 10  # some values are 0.1 apart, but for rounding
    for curve in curves:
        ours = _Stopping(monitor, 3, 0.1)
        theirs._random_state = np.random.RandomState(0)
        theirs._initialize(np.ones((1, 1)), [1, 1], np.float64)
        for epoch, value in enumerate(curve.tolist(), 1):
            record = SimpleNamespace(epoch=epoch, train_loss=value, monitored=lambda name, value=value: value)
            ours.on_epoch_end(trainer := SimpleNamespace(stop_training=False, weights=dict), record)
            theirs.loss_curve_.append(value)
            monkeypatch.setattr(theirs, "_score", lambda *_, value=value, **__: value)
            theirs._update_no_improvement_count(early_stopping, None, None, None)
            assert trainer.stop_training == (theirs._no_improvement_count > 3)
            if trainer.stop_training:
                break


@pytest.mark.parametrize(
    ("settings", "y", "message"),
    [
        ({"solver": "lbfgs"}, IRIS[1], "solver"),
        ({"max_iter": 0}, IRIS[1], "max_iter"),
        ({"activation": "step"}, IRIS[1], "activation"),
        ({"ranks": 3, "model": 2}, IRIS[1], "grid"),
        ({}, IRIS[1] + 0.5, "Unknown label type: continuous"),
        ({"early_stopping": True}, np.arange(150) == 0, "least populated"),
        ({"early_stopping": True, "validation_fraction": 0}, IRIS[1], "validation_fraction = 0: must be a number, gre"),
        ({"early_stopping": True, "validation_fraction": 0.001}, IRIS[1], "the validation part has 1 sample"),
        ({"initializer": "uniform"}, IRIS[1], "initializer"),
    ],
)
@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_wrong_input_is_refused(settings: dict[str, Any], y: Any, message: str) -> None:
    with pytest.raises((ValueError, HybridnnError), match=message):
        MLPClassifier(**settings).fit(IRIS[0], y)


def test_two_outputs_begin_as_the_one_of_scikit_learn() -> None:
    how: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 1e-300, "max_iter": 1, "random_state": 1}
    found, expected = (kind(**how).fit(IRIS[0], IRIS[1] > 0) for kind in (MLPClassifier, sk.MLPClassifier))
    np.testing.assert_array_equal(np.diff(found.coefs_[1], axis=1), expected.coefs_[1])


def test_first_parameter_and_classes_of_partial_fit() -> None:
    with pytest.raises(ValueError, match="classes must be passed"):
        MLPClassifier().partial_fit(*IRIS)
    with pytest.raises(ValueError, match="does not support early_stopping"):
        MLPClassifier(early_stopping=True).partial_fit(*IRIS, classes=[0, 1, 2])
    with pytest.raises(SettingError, match="loss = 8: must be 'squared_error'"):
        MLPRegressor(8).fit(*IRIS)
    found = MLPClassifier(**QUICK).partial_fit(IRIS[0], IRIS[1], classes=[0, 1, 2])
    with pytest.raises(ValueError, match="has the class"):
        found.partial_fit(IRIS[0], IRIS[1] + 1)


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "hybridnn.sklearn")
    with pytest.raises(EnvironmentProblem) as raised:
        importlib.import_module("hybridnn.sklearn")
    assert str(raised.value) == "hybridnn.sklearn needs scikit-learn 1.6 or later: pip install 'hybridnn[sklearn]'"


def test_an_unknown_parameter_gets_advice() -> None:
    for name, advice in (("alpha", "weight_decay is the factor"), ("hidden_layers", "did you mean hidden_layer_sizes")):
        with pytest.raises(SettingError, match=f"MLPClassifier takes no argument '{name}': {advice}"):
            MLPClassifier(**{name: 1})
