"""The trainer as scripts use it: fit, evaluate, predict, weights, its signature, and invalid arguments."""

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, get_type_hints

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from hybridnn import MLP, SGD, Adam, TrainConfig, Trainer
from hybridnn.data import as_rows, load_dataset
from hybridnn.errors import DataError, NonFiniteLossError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import TrainOptions
from hybridnn.training.records import EpochRecord, StepRecord
from hybridnn.training.trainer import _largest_product
from reference.callbacks import Calling
from reference.cases import assert_arrays_same
from reference.network import Array


def regression(samples: int = 60) -> tuple[Array, Array]:
    x = np.random.default_rng(0).uniform(-1, 1, (samples, 3))
    return x, np.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], axis=1)


def classification(samples: int = 60) -> tuple[Array, Array]:
    x = np.random.default_rng(1).uniform(-1, 1, (samples, 3))
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def trainer(**settings: Any) -> Trainer:
    optimizer = settings.pop("optimizer", SGD(lr=0.05))
    return Trainer(MLP([3, 16, 2], "tanh"), optimizer, **({"batch_size": 10} | settings))


def test_a_script_fits_evaluates_and_predicts() -> None:
    x, y = classification()
    it = trainer()
    steps: list[StepRecord] = []
    epochs: list[EpochRecord] = []
    history = it.fit(
        x, y, epochs=20, validation=(x, y), callbacks=[Calling(on_step=steps.append, on_epoch=epochs.append)]
    )
    assert history is it.history
    assert history.epochs == epochs
    assert history.steps == steps
    assert [record.step for record in steps] == list(range(10, 121, 10))
    assert [record.epoch for record in epochs] == list(range(1, 21))
    assert history.epochs[-1].train_loss < history.epochs[0].train_loss
    metrics = it.evaluate(x, y)
    assert metrics.accuracy == epochs[-1].validation_accuracy
    assert metrics.loss == epochs[-1].validation_loss
    assert metrics.accuracy > 0.95
    assert metrics.accuracy == np.mean(it.predict(x).argmax(axis=1) == y)
    assert all(record.samples_per_second > 0 and record.compute_seconds > 0 for record in epochs)
    assert all(record.bytes_sent == 0 and record.communication_seconds == 0 for record in epochs)
    handed_out = it.weights()
    handed_out["layers.0.weight"][:] = 0
    assert it.weights()["layers.0.weight"].all(), "weights are copies"


def test_validation_samples_may_be_rows_of_a_data_set() -> None:
    x, y = classification()
    pair = trainer().fit(x, y, epochs=2, validation=(x[:20], y[:20]))
    rows = trainer().fit(x, y, epochs=2, validation=as_rows(x[:20], y[:20]))
    assert [record.validation_loss for record in rows.epochs] == [record.validation_loss for record in pair.epochs]
    with pytest.raises(DataError, match="validation data: samples came without targets"):
        trainer().fit(x, y, epochs=1, validation=x)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="training data: samples came without targets: give x and y as two"):
        trainer().fit((x, y), epochs=1)


def test_evaluation_comes_every_so_many_epochs_and_at_the_end() -> None:
    x, y = regression()
    records = trainer(evaluate_every=3).fit(x, y, epochs=7, validation=(x, y)).epochs
    assert [record.epoch for record in records if record.validation_loss is not None] == [3, 6, 7]
    assert all((record.validation_r2 is None) == (record.validation_loss is None) for record in records)


def test_one_target_per_sample_may_be_a_vector() -> None:
    x, y = regression()
    flat, column = (Trainer(MLP([3, 8, 1]), batch_size=10) for _ in range(2))
    flat.fit(x, y[:, 0], epochs=2)
    column.fit(x, y[:, :1], epochs=2)
    assert np.array_equal(flat.weights()["layers.0.weight"], column.weights()["layers.0.weight"])


def test_without_shuffling_the_samples_come_in_their_order() -> None:
    x, y = regression(20)
    sorted_twice = trainer(shuffle=False, log_every=1, dtype="float64").fit(x, y, epochs=1).steps
    first_half = trainer(shuffle=False, log_every=1, dtype="float64").fit(x[:10], y[:10], epochs=1).steps
    assert sorted_twice[0].train_loss == first_half[0].train_loss
    shuffled = trainer(log_every=1, dtype="float64").fit(x, y, epochs=1).steps
    assert shuffled[0].train_loss != sorted_twice[0].train_loss


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_trainer_that_is_copied_names_its_weights(copied: Callable[[Trainer], Any]) -> None:
    with pytest.raises(TypeError, match=r"^a Trainer .* cannot be pickled or copied: save weights\(\), and"):
        copied(trainer())


CONSTANT: dict[str, tuple[Any, str]] = {
    "labels": (np.ones(20, int), "all 20 samples have the target 1: there is nothing to learn"),
    "a number": (np.full(20, 0.5), r"the target \[0\.5\]"),
    "two numbers": (np.full((20, 2), 3.0), r"the target \[3\.0, 3\.0\]"),
}


@pytest.mark.parametrize(("ranks", "distribution"), [(1, "local"), (2, "local"), (2, "scatter")])
@pytest.mark.parametrize("kind", CONSTANT)
def test_the_first_rank_warns_of_a_constant_target(ranks: int, kind: str, distribution: str) -> None:
    y, message = CONSTANT[kind]
    x = np.random.default_rng(0).normal(size=(20, 3))

    def fit(comm: Any, targets: Array) -> None:
        it = Trainer(MLP([3, 1 if kind == "a number" else 2]), distribution=distribution)
        it.fit(x, targets, epochs=1, validation=(x[:2], y[:2]))

    with pytest.warns(UserWarning, match=message) as caught:
        run_ranks(ranks, fit, y)
    assert [item.filename for item in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_ranks(ranks, fit, np.arange(20) % 2 if kind == "labels" else y + x[:, : y.ndim].reshape(y.shape))


def test_the_first_fit_warns_of_large_inputs() -> None:
    x, y = np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000) % 2
    it = Trainer(MLP([2, 2]), SGD(lr=1e-12))
    with pytest.warns(UserWarning, match="column 1 of x has inputs beyond 1,000: standardize") as found:
        it.fit(x * [1, 2e4], y, epochs=1)
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        it.fit(x * [1, 2e4], y, epochs=1)
        Trainer(MLP([2, 2])).fit(255 * np.abs(np.tanh(x)), y, epochs=1)


def test_the_name_of_an_optimizer_stands_for_its_defaults() -> None:
    assert Trainer(MLP([2, 2]), "Adam").optimizer == Adam()


def test_methods_of_other_libraries_are_named() -> None:
    hints = {"save": r"numpy.savez\('weights.npz'", "evaluat": "did you mean evaluate?", "_x": "'_x'$"}
    for name, words in hints.items():
        with pytest.raises(AttributeError, match=f"a Trainer has no attribute '{name}'.*{words}|{words}"):
            getattr(trainer(), name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers.0.weight": np.zeros((3, 16))}, ("layers.0.weight", "(3, 16)", "(16, 3)")),
        ({"layers.1.bias": np.zeros(3)}, ("layers.1.bias", "(3,)", "(2,)")),
        ({"layers.1.bias": None}, ("layers.1.bias", "missing")),
        ({"layers.2.bias": np.zeros(2)}, ("layers.2.bias", "2 layers")),
        ({"layers.0.bias": np.full(16, np.nan)}, ("layers.0.bias", "not finite")),
        ({"layers.0.bias": np.ma.masked_equal(np.zeros(16), 0)}, ("layers.0.bias", "masked")),
        ({"layers.0.bias": [0.0] * 16}, ("layers.0.bias", "of type list")),
    ],
)
def test_weights_of_another_model_are_refused(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    weights = {name: array for name, array in (trainer().weights() | changes).items() if array is not None}
    before = (it := trainer()).weights()
    for attempt in (lambda: it.load_weights(weights), lambda: trainer(initial_weights=weights)):
        with pytest.raises(DataError) as caught:
            attempt()
        assert all(word in str(caught.value) for word in words), str(caught.value)
    assert np.array_equal(it.weights()["layers.0.weight"], before["layers.0.weight"])


def bad(array: Array, value: float) -> Array:
    changed = array.astype(np.float64)
    changed[3, 1] = value
    return changed


X, Y = regression()
LABELS = classification()[1]

WRONG_DATA: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "nan-in-x": ((bad(X, np.nan), Y), ("x", "nan", "row 3", "column 1")),
    "masked-x": ((np.ma.masked_greater(X, 0.9), Y), ("x", "masked values")),
    "masked-rows": ((list(np.ma.masked_greater(X, 0.9)), Y), ("x", "masked values")),
    "large-x": ((bad(X, 1e39), Y), ("x is 1e+39 in row 3, column 1", "too large for float32", "training.dtype")),
    "large-y": ((X, bad(Y, 1e39)), ("y is 1e+39 in row 3, column 1", "too large for float32")),
    "large-rows": ((as_rows(bad(X, 1e39), Y), None), ("x is 1e+39 in row 3, column 1", "too large for float32")),
    "nan-in-y": ((X, bad(Y, np.nan)), ("y", "nan", "row 3", "column 1")),
    "label-above": ((X, LABELS + 1), ("label 2", "2 outputs", "0 to 1")),
    "label-below": ((X, LABELS - 1), ("label -1",)),
    "features": ((X[:, :2], Y), ("2 features", "3")),
    "targets": ((X, Y[:, :1]), ("1 targets", "2 outputs")),
    "no-targets": ((X, None), ("without targets",)),
    "data-set": ((load_dataset("digits"), None), ("without targets: give a part of the data set",)),
    "nothing": ((None, None), ("no samples",)),
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_wrong_data_are_refused_before_the_first_step(case: str) -> None:
    arguments, words = WRONG_DATA[case]
    it = trainer()
    before = it.weights()
    attempts: tuple[Callable[[], object], ...] = (
        lambda: it.evaluate(*arguments),
        lambda: it.fit(X, Y, epochs=1, validation=arguments),
        lambda: it.fit(*arguments, epochs=1),
    )
    for attempt in attempts:
        with pytest.raises(DataError) as caught:
            attempt()
        message = str(caught.value)
        assert all(word in message for word in words), message
        assert "\n" not in message
    assert "training data" in message or case != "nan-in-x"
    assert it.step == 0
    assert np.array_equal(it.weights()["layers.0.weight"], before["layers.0.weight"])


ONE_HOT = np.eye(2)[LABELS]
TO_INTEGERS = "y has dtype float64, and this training is a classification, which takes integer labels: "
TO_FLOATS = "y has dtype int64, that of labels, and this training is a regression: give y.astype(float)"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (LABELS, LABELS.astype(float), TO_INTEGERS + "give y.astype(int)"),
        (LABELS, ONE_HOT, TO_INTEGERS + "give y.argmax(axis=1)"),
        (LABELS, LABELS.astype(float)[:, None], TO_INTEGERS + "give y.ravel().astype(int)"),
        (LABELS, Y, TO_INTEGERS + "another Trainer trains a regression"),
        (Y, LABELS, TO_FLOATS),
        (Y, LABELS + 7, TO_FLOATS),
    ],
)
def test_a_trainer_remembers_its_task(first: Array, second: Array, words: str) -> None:
    plain, it = (Trainer(MLP([3, 16, 2], "tanh"), SGD(lr=0.05), batch_size=10) for _ in range(2))
    of_classes = first is LABELS
    assert {it.evaluate(X, y).accuracy is None for y in (Y, LABELS)} == {False, True}, (
        "before the training, data decide"
    )
    with pytest.raises(DataError, match=re.escape(words)):
        it.fit(X, first, epochs=1, validation=(X, second))
    assert it.step == 0
    it.fit(X, first, epochs=1)
    calls: tuple[Callable[[], object], ...] = (
        lambda: it.evaluate(X, second),
        lambda: it.fit(X, second, epochs=1),
        lambda: it.fit(X, first, epochs=1, validation=(X, second)),
    )
    it.load_weights(it.weights())  # the task stays
    for call in calls:
        with pytest.raises(DataError, match=re.escape(words)) as caught:
            call()
        assert "\n" not in str(caught.value)
    if of_classes:
        it.predict_proba(X)
    else:
        with pytest.raises(SettingError, match=r"a regression, which has no probabilities; .*y\.astype\(int\)"):
            it.predict_proba(X)
    it.fit(X, first, epochs=1)
    plain.fit(X, first, epochs=2)
    assert_arrays_same(it.weights(), plain.weights())
    it.load_weights(it.weights(), reset_optimizer=True)
    it.fit(X, Y if of_classes else LABELS, epochs=1)


@pytest.mark.parametrize(
    ("outputs", "loss", "y", "words"),
    [
        (2, "auto", LABELS.astype(float), "dtype float64, one number per sample, .* 2 outputs: .*astype.int"),
        (2, "cross_entropy", LABELS.astype("f4"), "dtype float32, .*y.astype.int"),
        (2, "auto", ONE_HOT, 'dtype float64 and one-hot rows: .*y.argmax.axis=1.; .* MLP takes loss="mse"'),
        (2, "auto", ONE_HOT.astype(int), r"dtype int64 and shape \(60, 2\): .*y.argmax.axis=1.;"),
        (2, "auto", LABELS[:, None], r"dtype int64 and shape \(60, 1\): .*y.ravel..;"),
        (1, "auto", np.arange(60, dtype="i2"), 'label 59 .*dtype int16: .* y.astype.float., or MLP loss="mse"'),
    ],
)
def test_targets_of_the_wrong_dtype_come_with_the_conversion(outputs: int, loss: str, y: Array, words: str) -> None:
    it = Trainer(MLP([3, 4, outputs], loss=loss))
    for attempt in (it.evaluate, partial(it.fit, epochs=1)):
        with pytest.raises(DataError, match=words) as caught:
            attempt(X, y)
        assert "\n" not in str(caught.value)


def test_one_hot_numbers_are_targets_where_the_loss_says_so() -> None:
    it = Trainer(MLP([3, 4, 2], loss="mse"))
    it.fit(X, ONE_HOT, epochs=1, validation=(X, ONE_HOT.astype(int)))
    assert it.history.epochs[0].validation_r2 is not None


@pytest.mark.parametrize("samples", [np.zeros((4, 2)), np.zeros(3), np.zeros((2, 3, 1))])
def test_samples_of_another_shape_have_no_prediction(samples: Array) -> None:
    with pytest.raises(DataError, match=r"\(samples, 3\)"):
        trainer().predict(samples)


@pytest.mark.in_process(ranks=[1, 2])
@pytest.mark.parametrize("value", [np.nan, 1e39, None], ids=["nan", "too large", "masked"])
def test_samples_without_a_prediction_are_named(comm: MPI.Intracomm, value: float | None) -> None:
    x = np.ma.masked_greater(X, 0.9) if value is None else bad(X, value)
    it, message = trainer(grid=ProcessGrid(comm)), "masked value" if value is None else "in row 3, column 1: "
    with pytest.raises(DataError, match=message):
        it.predict(x)
    with pytest.raises(DataError, match=message):
        it.predict_proba(x)


@pytest.mark.in_process(ranks=[1, 3])
def test_sparse_samples_train_as_dense_ones(comm: MPI.Intracomm) -> None:
    x = X * (np.random.default_rng(4).random(X.shape) < 0.3)
    grid = ProcessGrid(comm)
    found, expected = (trainer(grid=grid, dtype="float64", class_weight="balanced") for _ in range(2))
    found.fit(sparse.csc_array(x), LABELS, epochs=2, validation=(sparse.coo_array(x), LABELS))
    expected.fit(x, LABELS, epochs=2, validation=(x, LABELS))
    assert found.history.epochs[-1].validation_loss == expected.history.epochs[-1].validation_loss
    assert found.evaluate(sparse.csr_matrix(x), LABELS) == expected.evaluate(x, LABELS)
    np.testing.assert_array_equal(found.predict(sparse.csr_array(x)), expected.predict(x))


def test_data_of_another_task_and_size_follow_one_another() -> None:
    it, uses = trainer(batch_size=100, dtype="float64"), (150, 160, 170, 40)
    for samples, kind in zip(uses, (classification, regression) * 2, strict=True):
        assert it.evaluate(*kind(samples)) == trainer(batch_size=100, dtype="float64").evaluate(*kind(samples))
    for samples in uses:
        assert np.isfinite(it.fit(*classification(samples), epochs=1).epochs[-1].train_loss)
    assert np.isfinite(it.predict(X)).all()


def test_the_norms_of_a_diverged_network_are_told_though_their_squares_overflow() -> None:
    it = trainer(optimizer=SGD(lr=1e25, momentum=0.0))
    with pytest.raises(NonFiniteLossError) as caught, np.errstate(all="ignore"):
        it.fit(X, Y, epochs=5)
    assert "layer 0: inf" not in str(caught.value), str(caught.value)
    for words in ("layer 0: ", "layer 1: ", "optimizer.lr", "clip_norm", "warm-up"):
        assert words in str(caught.value)


@pytest.mark.filterwarnings("ignore:column")
def test_clipping_works_where_the_squares_of_the_gradient_overflow() -> None:
    # float32: squares above 3.4e38 are infinite, and a scale of clip / infinity would stop the training without a word.
    found, expected = (
        Trainer(MLP([3, 16, 2]), SGD(lr=0.05), batch_size=60, dtype=dtype, clip_norm=0.5)
        for dtype in ("float32", "float64")
    )
    before = found.weights()
    for it in (found, expected):
        it.fit(X * 1e12, Y * 1e12, epochs=1)
    assert found.gradient_norm() == pytest.approx(0.5, rel=1e-5)
    for name, array in expected.weights().items():
        np.testing.assert_allclose(found.weights()[name], array, rtol=1e-3, atol=1e-4)
    assert not np.array_equal(found.weights()["layers.0.weight"], before["layers.0.weight"])


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_probabilities_are_the_softmax_of_the_outputs(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    trainer = Trainer(MLP([4, 6, 3]), SGD(lr=0.1), grid=ProcessGrid(comm), batch_size=10, dtype="float64")
    trainer.fit(x, y, epochs=2)
    powers = np.exp(trainer.predict(x))
    np.testing.assert_allclose(trainer.predict_proba(x), powers / powers.sum(axis=1)[:, None], rtol=1e-12)
    regression = Trainer(MLP([4, 6, 3], loss="mse"), SGD(lr=0.1), grid=ProcessGrid(comm))
    with pytest.raises(SettingError, match=r"model\.loss = 'mse': classification data takes cross_entropy"):
        regression.predict_proba(x)


@pytest.mark.parametrize(("batch", "model", "expected"), [(1, 1, 35 * 11), (2, 1, 35 * 6), (1, 2, 35 * 11 // 2)])
def test_threads_depend_on_the_largest_product_of_a_rank(batch: int, model: int, expected: int) -> None:
    def program(comm: Any) -> None:
        assert _largest_product(MLP([5, 7, 3]), 11, ProcessGrid(comm, batch=batch, model=model)) == expected

    run_ranks(batch * model, program)


def test_the_signature_has_every_option_with_its_default() -> None:
    shown, config = signature(Trainer).parameters, TrainConfig(MLP([2, 3]))
    values = {name: shown[name].default for name in config.items().keys() - {"model", "optimizer"}}
    assert values == {name: getattr(config, name) for name in values}
    assert shown.keys() - values.keys() == {"model", "optimizer", "grid", "device", "initial_weights"}


def test_types_of_options_are_those_of_the_configuration() -> None:
    hints = get_type_hints(TrainConfig)
    del hints["model"], hints["optimizer"]
    assert get_type_hints(TrainOptions) == hints
