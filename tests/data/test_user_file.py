"""Data files of users: training data and samples to predict from, valid and invalid."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.data import TableOptions, load_file
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.inference import load_samples

AllOf = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
X = np.arange(12.0).reshape(4, 3)
LABELS = np.array([2, 0, 1, 2])
SAMPLES = np.arange(6.0).reshape(3, 2)


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def text(folder: Path, content: str) -> Path:
    (folder / "mine.csv").write_text(content, encoding="utf-8")
    return folder / "mine.csv"


def test_npz_with_integers_is_classification_and_with_floats_regression(tmp_path: Path, all_of: AllOf) -> None:
    dataset = load_file(npz(tmp_path, x_train=X, y_train=LABELS))
    assert (dataset.name, dataset.task, dataset.features, dataset.outputs) == ("mine.npz", "classification", 3, 3)
    assert dataset.test is None
    np.testing.assert_array_equal(all_of(dataset.train)[0], X)
    np.testing.assert_array_equal(all_of(dataset.train)[1], LABELS)
    assert load_file(tmp_path / "mine.npz", task="regression").task == "regression"
    dataset = load_file(npz(tmp_path, x_train=X, y_train=X[:, 0], x_test=X[:2], y_test=X[:2, 1]))
    assert (dataset.task, dataset.outputs) == ("regression", 1)
    np.testing.assert_array_equal(all_of(dataset.test)[1], X[:2, 1:2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "y_train": LABELS}, "no x_train; found x, y_train"),
        ({}, "no x_train and no y_train; found nothing"),
        ({"x_train": X, "y_train": LABELS, "x_test": X}, "no y_test; found x_train, y_train, x_test"),
        ({"x_train": X, "y_train": LABELS[:2]}, "x_train has 4 samples and y_train has 2"),
        ({"x_train": X, "y_train": LABELS, "x_test": X, "y_test": [0, 1, 7, 0]}, "y_test: label 7 in row 2: with 3 cl"),
        ({"x_train": X, "y_train": LABELS, "x_test": X[:, :2], "y_test": LABELS}, r"x_test, y_test have shapes \(4, 2"),
        ({"x_train": X, "y_train": X, "x_test": X, "y_test": X[:, 0]}, r"x_test, y_test have shapes \(4, 3\), \(4, 1"),
        ({"x_train": X * np.nan, "y_train": LABELS}, "x_train is nan in row 0, column 0"),
        ({"x_train": X, "y_train": LABELS + 1_990_000_000}, "label 1990000002 among 4 samples; integers are class la"),
        ({"x_train": X, "y_train": LABELS * 0}, "all labels are 0: classification needs at least 2 classes"),
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_file(npz(tmp_path, **arrays))


def test_csv_with_decimal_points_is_regression_and_one_column_of_integers_classification(
    tmp_path: Path, all_of: AllOf
) -> None:
    path = text(tmp_path, "a, price,b,weight\n1,2.5,3,7\n\n4,5e1,6,8\n")
    dataset = load_file(path, ["weight", "price"])
    assert (dataset.task, dataset.features, dataset.outputs) == ("regression", 2, 2)
    np.testing.assert_array_equal(all_of(dataset.train)[0], [[1, 3], [4, 6]])
    np.testing.assert_array_equal(all_of(dataset.train)[1], [[7, 2.5], [8, 50]])
    dataset = load_file(text(tmp_path, "\ufeffa,kind\n1.5,0\n2.5, 1\n3.5, 1\n4.5,0\n"), ["kind"])
    assert (dataset.task, dataset.outputs) == ("classification", 2)
    assert all_of(dataset.train)[1].tolist() == [0, 1, 1, 0]
    assert load_file(text(tmp_path, "a,y\n1,250000\n2,3\n"), ["y"], task="regression").outputs == 1
    with pytest.raises(DataError, match=r"column 'y' holds 0\.5; classification needs labels"):
        load_file(text(tmp_path, "a,y\n1,0.5\n"), ["y"], task="classification")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "needs the names of its target columns"),
        (["c"], "no column 'c', which data.targets names; it has a, b"),
        (["a", "b"], r"leaves no column of .*mine\.csv as input"),
        (["a", "a"], "each column only once"),
    ],
)
def test_csv_targets_that_do_not_fit(tmp_path: Path, targets: list[str], message: str) -> None:
    with pytest.raises((DataError, SettingError), match=message):
        load_file(text(tmp_path, "a,b\n1,2\n"), targets)


def test_file_that_is_missing_or_of_another_kind(tmp_path: Path) -> None:
    for read in (load_file, lambda path: load_samples(path, 2)):
        with pytest.raises(DataError, match=r"gone\.npz: cannot be read: No such file"):
            read(tmp_path / "gone.npz")
        with pytest.raises(SettingError, match=r"must end in \.npz, \.csv, \.tsv, \.txt or \.parquet"):
            read(tmp_path / "mine.pkl")
    path = npz(tmp_path, x_train=X, y_train=LABELS)
    for given in ({"targets": ["a"]}, {"inputs": ["a"]}, {"options": TableOptions(missing="drop")}):
        with pytest.raises(SettingError, match=r"only for tables"):
            load_file(path, **given)


def test_samples_are_array_x_or_the_only_array(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=SAMPLES, other=SAMPLES + 1)
    assert load_samples(path, 2).x.tolist() == SAMPLES.tolist()
    np.savez(path, whatever=SAMPLES.astype(np.int32))
    assert load_samples(path, 2).x.tolist() == SAMPLES.tolist()


def test_target_columns_of_samples_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("\ufeffa, y ,b\n0,9,1\n2,9,3\n\n4,9,5\n", encoding="utf-8")
    assert load_samples(path, 2, ["y", "absent"]).x.tolist() == SAMPLES.tolist()
    assert load_samples(path, 3).x.tolist() == [[0, 9, 1], [2, 9, 3], [4, 9, 5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5,2\n3,4\n", "the first line seems to hold data .5, 2.; set data.csv.header"),
        ("", "the first line is empty; it must name the columns"),
        (",\n1,2\n", "the first line is empty; it must name the columns"),
        ("a,b,c\n1,2,3\n", "samples of 3 features; the network takes 2"),
        ("a,y\n1,2\n", "samples of 1 features; the network takes 2"),
        ("y\n1\n", r"shape \(1, 0\): at least one sample and one feature"),
        ("a,b\n1,\x00\n", "samples.csv"),
    ],
)
def test_samples_in_a_wrong_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_samples(path, 2, ["y"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": SAMPLES, "b": SAMPLES}, "which array holds the samples.*found a, b"),
        ({}, "found nothing"),
        ({"x": np.ones((3, 4))}, "samples of 4 features; the network takes 2"),
        ({"x": np.ones(3)}, r"x has shape \(3,\)"),
        ({"x": np.float64(3)}, r"x has shape \(\)"),
        ({"x": np.array([[1, np.inf]])}, "x is inf in row 0, column 1"),
    ],
)
def test_samples_in_a_wrong_npz(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=rf"samples\.npz: .*{message}"):
        load_samples(path, 2)
