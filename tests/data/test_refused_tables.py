"""Files of users: what they hold, and what is refused with advice."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.config.settings import load_settings
from hybridnn.data import TableOptions, load_file
from hybridnn.data.table_fitting import check_table, settings_of
from hybridnn.errors import DataError, HybridnnError, SettingError
from hybridnn.runs.inference import load_samples
from reference.own_tables import rows, table

ONE_HOT = TableOptions(categories="one-hot")

FOLLOWED: dict[str, tuple[str | bytes, str, str, str]] = {
    "odd cells": (
        rows("a,y", *["#,p"] * 5, *["#,q"] * 4, "n.a.,q"),
        "a: 10 of 100 cells are no numbers .'n.a.' in row 10.; correct these cells .* missing values to data.csv.na_v",
        "csv.na_values=n.a. missing=mean",
        "classification: 2 classes (p, q)",
    ),
    "odd targets": (
        rows("a,y", *["#,#.5"] * 9, "#,?"),
        "y: 10 of 100 cells are no numbers .'.' in row 10.; .* to data.csv.na_values, and set model.loss to mse",
        "csv.na_values=? missing_targets=drop model.loss=mse",
        "regression: by the loss, mse; 10 of 100 rows",
    ),
    "two readings of a comma": (
        rows("a;y", "1,018;p", "700;q"),
        "a: '1,018' may be read in two ways .data.csv.thousands = \",\" if it separates thousands, data.csv.decimal = ",
        "csv.thousands=,",
        "classification",
    ),
    "a target with commas": (
        rows("a;y", *(f"{n};{n},250" for n in range(1, 30)), times=1),
        "y: '1,250' may be read in two ways",
        "csv.thousands=,",
        "regression: y has decimal points",
    ),
    "decimal commas and points of thousands": (
        rows("a;b;y", "1,5;1.200;p", "2,25;1.340;q"),
        "2 problems: .1. b: '1.200' may be read in two ways .* .2. a: '1,5' may be .* data.csv.decimal = \",\" if it ",
        "csv.decimal=, csv.thousands=.",
        "classification",
    ),
    "spaces of thousands": (
        rows("a,y", "1\u00a0200,p", "7,q"),
        'a: .* may be read in two ways .data.csv.thousands = " " if it separates thousands.;',
        "csv.thousands=' '",
        "classification",
    ),
    "all points before three digits": (
        rows("a;y", "30.000;p", "31.100;q"),
        "'30.000' may be read in two ways",
        "csv.decimal=.",
        "classification",
    ),
    "dates in another form": (
        rows("a,y", "31.12.2020,p", "1.2.2021,q"),
        "text in a .* read dates with data.csv.parse_dates and dayfirst or date_format",
        "csv.parse_dates=a csv.date_format=%d.%m.%Y",
        "classification",
    ),
    "None": (
        rows("a,y", "#,None", "#,Major", "#,Minor"),
        'if they are not, set data.csv.keep_default_na = false, and data.csv.na_values = "" for empty cells',
        "csv.keep_default_na=false csv.na_values=",
        "classification: 3 classes (Major, Minor, None)",
    ),
    "values that are read as missing": (
        rows("a,y", "NA,p", "FR,q", "DE,q"),
        "missing values in a .10 rows, first in row 1.",
        "csv.keep_default_na=false csv.na_values= categories=one-hot",
        "classification",
    ),
    "quantities": (
        rows("rooms,rent", *(f"{n % 5},{675 + 25 * (n % 40)}" for n in range(1500)), times=1),
        "'rent' has 40 different whole numbers in 1,500 rows; set model.loss to mse .* or to cross_entropy",
        "model.loss=mse",
        "regression",
    ),
    "quantities in few rows": (
        rows("a,y", *(f"#,{n % 7}" for n in range(13)), times=1),
        "'y' has 7 different whole numbers in 13 rows",
        "model.loss=cross_entropy",
        "classification: 7 classes",
    ),
    "a title": (
        "Sales of 2020\n" + rows("a,y", "#,p", "#,q"),
        "the header line has 1 .* set data.csv.skiprows to their number, or data.csv.comment to their sign",
        "csv.skiprows=1",
        "classification",
    ),
    "Excel's line": (
        "\ufeffsep=;\r\n" + rows("a;y", "#;p", "#;q"),
        "column 2 has no name .* set data.csv.skiprows to their number, or data.csv.comment to their sign",
        "csv.skiprows=1",
        "classification",
    ),
    "UTF-16 without a mark": (
        rows("größe;y", "3;p", "4;q").encode("utf-16-le"),
        "has the character NUL.* or state its encoding in data.csv.encoding",
        "csv.encoding=utf-16-le",
        "classification",
    ),
    "bytes": (
        rows("a,y", "größer,p", "b,q").encode("cp1252"),
        "not a text file in UTF-8 .*byte 0xf6.*: .* or state its encoding in data.csv.encoding",
        "csv.encoding=cp1252 categories=one-hot",
        "classification",
    ),
}
"""A table, its refusal, the settings that are advised, and the task with them."""


@pytest.mark.parametrize("kind", FOLLOWED)
def test_the_advice_of_a_refusal_helps(kind: str, tmp_path: Path) -> None:
    text, message, settings, task = FOLLOWED[kind]
    target = "rent" if kind == "quantities" else "y"
    with pytest.raises(HybridnnError, match=message) as raised:
        load_file(table(tmp_path, text), target)
    assert str(raised.value).isprintable()
    assert "one-hot" not in str(raised.value) or "one-hot" in settings
    overrides = [text if text.startswith("model.") else f"data.{text}" for text in shlex.split(settings)]
    known = load_settings(None, ["data.file=mine.csv", f"data.targets={target}", *overrides])
    data = load_file(tmp_path / "mine.csv", target, task=known.model.task, options=known.data.table_options)
    assert data.task_reason.startswith(task)


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "infinite numbers": (rows("a,y", "inf,p", "7,q", "1,p"), "infinite values in 10 of 30 rows, first in row 1: a"),
    "versions": (rows("a,y", "1.0.0,p", "1.0.2,q", "2.1.0,q"), "leave the column out .*, read dates with "),
    "odd words": (rows("a,y", "5,p", "7,q", "2,q", "x,q", "z,p"), "'x' in row 4, 'z' in row 5.; correct these cells"),
    "percent signs": (rows("a,y", "5%,p", "7%,q"), "a: no cell is a number .* -1234.5, without signs and units"),
    "parentheses": (rows("a,y", "(0.5),p", "7,q"), "a: 10 of 20 cells are no numbers .* without signs and units"),
    "targets in dollars": (rows("a;y", "#;$1,#"), "y: no cell is a number .* without signs and units"),
    "an empty column": (rows("a,b,y", "1,,p", "2,,q"), "b is empty; leave the column out with data.drop_columns"),
    "an id": (rows("a,y", "c#,p", "c#,q", times=20), "'c0' in row 1, 40 different values in 40 rows"),
    "one class": (rows("a,y", "1,p", "2,p"), "all labels are p; classification needs at least 2 classes"),
    "no header": (rows("5.1,3.5,setosa", "4.9,3.0,virginica"), 'hold data .* data.csv.header = "None" if it is'),
    "no header, and more words": (rows("39,State,Never", "50,Private,Married", "38,State,Wed"), "hold data"),
    "no header, and words alone": (rows("x,n,o", "x,n,o", "b,n,x"), "the first line seems to hold data .x, n, o."),
    "no header, and equal cells": (rows("x,x,n", "b,s,t"), "several columns are named 'x'; set data.csv.header"),
    "equal names": ("a,a,y\n1,2,3\n", "mine.csv: several columns are named 'a'"),
    "no rows": ("a,y\n", "no line of data"),
    "more cells than names": ("a,y\n1,2,3\n", "the first row has 3 cells, the header line has 2"),
    "a column without cells": ("a,y\n1\n2\n", r"missing values in the target y \(2 rows"),
    "gzip": (b"\x1f\x8b\x08 and more", "not a text file in UTF-8 .* unpack what is compressed"),
    "a workbook": (b"PK\x03\x04\0\0 and more", "has the character NUL.*: unpack .* save a sheet or a page as .csv"),
    "a web page": ("\n<!DOCTYPE html>\n<table>", "no column 'y', which data.targets names; it has <!DOCTYPE html>"),
    "marks that are escaped": (
        'a,b,y\n"size",1,p\n"size 5\\" x, long",2,q\n',
        "Expected 3 fields in line 3, saw 4; if lines precede",
    ),
    "an open quotation mark": ('a,y\n1,p\n2,"q\n', "EOF inside string starting at row 2"),
    "quoted names": (rows("'a','y'", "1,p", "2,q"), "\"'y'\" differs from it by its quotation marks"),
    "invisible letters": (rows("a,\u200by", "1,p", "2,q"), "differs from it by capitals or invisible letters"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_table_is_refused_with_advice(kind: str, tmp_path: Path) -> None:
    text, message = REFUSED[kind]
    with pytest.raises(HybridnnError, match=message) as raised:
        load_file(table(tmp_path, text), "y")
    assert str(raised.value).isprintable()
    assert "one-hot" not in str(raised.value)


def test_all_problems_are_named_at_once_with_settings_that_solve_them(tmp_path: Path) -> None:
    path = table(tmp_path, rows("id,city,age,since,y", "c#,Rome,,2020-01-01,p", "c#,Oslo,30,2021-01-01,q", times=20))
    with pytest.raises(DataError, match=r"3 problems: \(1\) text in id .* \(2\) text in city .* \(3\) missing .* age"):
        load_file(path, "y")
    found = check_table(path, "y")
    assert [line.becomes for line in found.columns] == ["?", "?", "input", "input, days since 1970", "target"]
    assert [(line.missing, line.different) for line in found.columns[:3]] == [(0, 40), (0, 2), (20, 1)]
    solved = settings_of(found.problems)
    assert solved == {"drop_columns": ["id"], "categories": "one-hot", "missing": "mean"}
    data = load_file(path, "y", options=TableOptions(**solved))  # type: ignore[arg-type]
    assert (data.inputs, data.features) == (("city", "age", "since"), 4)


def test_a_warning_says_that_few_values_are_a_regression(tmp_path: Path) -> None:
    (warning,) = load_file(table(tmp_path, rows("a,y", "7,3.0", "8,4.0")), "y").warnings
    assert "y has the values 3, 4 with decimal points: a regression; set model.loss to cross_entropy" in warning
    assert load_file(table(tmp_path, rows("a,y", "7,3", "8,4")), "y", task="regression").warnings == ()


def test_unknown_keys_of_pandas_are_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"data\.csv\.decimals = 1: did you mean decimal"):
        load_settings(None, ["data.file=a.csv", "data.targets=y", "data.csv.decimals=1"])
    with pytest.raises(SettingError, match=r"data\.csv = ';': must be a table of keys of pandas\.read_csv: sep, "):
        load_settings(None, ["data.file=a.csv", "data.targets=y", "data.csv=;"])
    options = load_settings(None, ["data.file=a.csv", "data.csv.names=id,since", "data.csv.na_values=-999"]).data
    assert options.csv == {"names": ["id", "since"], "na_values": ["-999"]}


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
    ("content", "message"),
    [
        ("5,2\n3,4\n", "the first line seems to hold data .5, 2.; set data.csv.header"),
        ("", "no line of data"),
        (",\n1,2\n", r"column 1 has no name \(every column needs one\)"),
        ("a,b,c\n1,2,3\n", "samples of 3 features; the network takes 2"),
        ("a,y\n1,2\n", "samples of 1 features; the network takes 2"),
        ("y\n1\n", r"shape \(1, 0\): at least one sample and one feature"),
        ("a,b\n1,\x00\n", "has the character NUL"),
        ({"a": SAMPLES, "b": SAMPLES}, "which array holds the samples.*found a, b"),
        ({}, "found nothing"),
        ({"x": np.ones((3, 4))}, "samples of 4 features; the network takes 2"),
        ({"x": np.ones(3)}, r"x has shape \(3,\)"),
        ({"x": np.float64(3)}, r"x has shape \(\)"),
        ({"x": np.array([[1, np.inf]])}, "x is inf in row 0, column 1"),
    ],
)
def test_samples_in_a_wrong_file(tmp_path: Path, content: str | dict[str, Any], message: str) -> None:
    path = text(tmp_path, content) if isinstance(content, str) else npz(tmp_path, **content)
    with pytest.raises(DataError, match=rf"mine\.{path.suffix[1:]}.*{message}"):
        load_samples(path, 2, ["y"] if isinstance(content, str) else [])
