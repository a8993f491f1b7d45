"""Tables of users against pandas' own encodings: text, categories, missing values, separators, Parquet, data frames."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from hybridnn.data import Dataset, TableEncoding, TableOptions, as_rows, load_file, load_frame, split_indices
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.inference import load_samples

ONE_HOT = TableOptions(categories="one-hot")
ROWS = 200

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")


@pytest.fixture
def people() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "city": rng.choice(["Rome", "Berlin", "Paris, Texas", "Zürich"], ROWS),
            "income": rng.normal(3e4, 1e4, ROWS),
            "member": rng.choice([True, False], ROWS),
            "answer": rng.choice(["yes", "no", "later"], ROWS),
        }
    )


def arrays(data: Dataset) -> tuple[NDArray[Any], NDArray[Any]]:
    return data.train.x, data.train.y


def expected_inputs(people: pd.DataFrame) -> NDArray[np.float64]:
    """Inputs by pandas' one-hot encoding, in the order of the columns."""
    cities = pd.get_dummies(people["city"])[sorted(people["city"].unique())]
    return np.column_stack([people["age"], cities, people["income"], people["member"]]).astype(float)


def write_csv(frame: pd.DataFrame, path: Path, **options: Any) -> Path:
    frame.to_csv(path, index=False, **options)
    return path


FORMS: dict[str, dict[str, Any]] = {
    "commas": {},
    "semicolons": {"sep": ";"},
    "tabs": {"sep": "\t"},
    "byte-order mark": {"encoding": "utf-8-sig"},
    "CRLF": {"lineterminator": "\r\n"},
    "quotes": {"quoting": 1},
    "decimal commas": {"sep": ";", "decimal": ","},
    "single quotation marks": {"quotechar": "'", "quoting": 1},
}


@pytest.mark.parametrize("form", FORMS)
def test_csv_in_every_form_has_the_same_samples(tmp_path: Path, people: pd.DataFrame, form: str) -> None:
    path = write_csv(people, tmp_path / "people.csv", **FORMS[form])
    csv = {key: value for key, value in FORMS[form].items() if key in ("decimal", "quotechar")}
    x, y = arrays(load_file(path, ["answer"], options=TableOptions(categories="one-hot", csv=csv)))
    np.testing.assert_array_equal(x, expected_inputs(people))  # to the last bit
    np.testing.assert_array_equal(y, people["answer"].map({"later": 0, "no": 1, "yes": 2}))


@needs_pyarrow
def test_parquet_and_frames_have_the_samples_of_csv(tmp_path: Path, people: pd.DataFrame) -> None:
    people.to_parquet(tmp_path / "people.parquet")
    for data in (
        load_file(tmp_path / "people.parquet", ["answer"], options=ONE_HOT),
        load_frame(people, ["answer"], options=ONE_HOT),
        load_frame(people.convert_dtypes(), ["answer"], options=ONE_HOT),
        load_frame(people.astype({"city": "category", "answer": "category"}), ["answer"], options=ONE_HOT),
        load_frame(people.set_index("age"), ["answer"], options=ONE_HOT),
    ):
        assert (data.task, data.outputs, data.features) == ("classification", 3, 7)
        assert data.encoding.classes == ("later", "no", "yes")
        np.testing.assert_array_equal(arrays(data)[0], expected_inputs(people))
        np.testing.assert_array_equal(arrays(data)[1], people["answer"].map({"later": 0, "no": 1, "yes": 2}))


def test_options_and_frames_of_other_libraries_are_refused_with_advice() -> None:
    with pytest.raises(SettingError, match=r"no argument 'drop': did you mean drop_columns\?"):
        TableOptions(drop="id")  # type: ignore[call-arg]
    with pytest.raises(DataError, match="the frame is of the type ndarray: must be a data frame of pandas"):
        load_frame(np.ones((3, 2)), "y")  # type: ignore[arg-type]


@needs_pyarrow
@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(50) + b"PAR1", b"a,b\n1,2\n"])
def test_file_that_is_no_parquet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet: pandas cannot read the \.parquet file: "):
        load_file(tmp_path / "a.parquet", ["y"])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes", "no"], ("no", "yes")),
        ([True, False, True], ("False", "True")),
        ([2, 10, -1], ("-1", "2", "10")),
        (["b ", " a", "b"], ("a", "b")),
    ],
)
def test_classes_keep_their_names(values: list[Any], classes: tuple[str, ...]) -> None:
    values = values * 2
    data = load_frame(pd.DataFrame({"a": [1.0, 2.0, 3.0] * 2, "y": values}), ["y"])
    assert (data.task, data.encoding.classes) == ("classification", classes)
    assert [classes[label] for label in arrays(data)[1]] == [str(value).strip() for value in values]
    assert [data.class_name(label) for label in range(len(classes))] == list(classes)


def test_whole_numbers_that_pandas_made_floats_are_labels_still(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1.5,0\n2.5,1\n3.5,\n4.5,1\n5.5,0\n")
    data = load_file(tmp_path / "a.csv", ["y"], options=TableOptions(missing="drop"))
    assert (data.task, arrays(data)[1].tolist()) == ("classification", [0, 1, 1, 0])
    assert data.task_reason == "classification: 2 classes (0, 1); 1 of 5 rows have missing values and are left out"
    (tmp_path / "a.csv").write_text("a,y\n1.5,0.0\n2.5,1.0\n")
    assert load_file(tmp_path / "a.csv", ["y"]).task_reason == "regression: y has decimal points"
    data = load_file(tmp_path / "a.csv", ["y"], task="classification")
    assert data.encoding.classes == ("0.0", "1.0")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "y": [0.0, 1.0, 1.0, 0.0, np.nan]})
    assert load_frame(frame[:4], "y").task == "regression"
    assert load_frame(frame, "y", options=TableOptions(missing="drop")).task == "classification"


@pytest.fixture
def gaps(people: pd.DataFrame) -> pd.DataFrame:
    """The same with missing values: three ages, one income in another row, and two cities."""
    frame = people.astype({"age": float})
    frame.loc[[3, 50, 120], "age"] = np.nan
    frame.loc[7, "income"] = np.nan
    frame.loc[[3, 9], "city"] = None
    return frame


def test_rows_with_missing_values_are_left_out(gaps: pd.DataFrame, people: pd.DataFrame) -> None:
    data = load_frame(gaps, ["answer"], options=TableOptions(missing="drop", categories="one-hot"))
    kept = people.drop(index=[3, 7, 9, 50, 120])
    np.testing.assert_array_equal(arrays(data)[0], expected_inputs(people)[kept.index])
    assert "; 5 of 200 rows have missing values and are left out" in data.task_reason


def test_a_column_that_only_test_samples_have_has_no_mean(gaps: pd.DataFrame) -> None:
    gaps["age"] = gaps["age"].where(gaps.index == 1)
    options = TableOptions(categories="one-hot", missing="mean")
    with pytest.raises(DataError, match="no value in the training samples of age: no mean to fill in"):
        load_frame(gaps, ["answer"], options=options, training=lambda count: np.array([0, 2]))


def test_means_of_the_training_samples_alone_replace_missing_values(gaps: pd.DataFrame) -> None:
    def training(samples: int) -> NDArray[np.int64]:
        return split_indices(samples, 0.3, seed=5)[0]

    options = TableOptions(missing="mean", categories="one-hot")
    data = load_frame(gaps, ["answer"], options=options, training=training)
    cities = pd.get_dummies(gaps["city"], dtype=float)
    cities[gaps["city"].isna()] = np.nan
    table = pd.concat([gaps["age"], cities, gaps["income"], gaps["member"].astype(float)], axis=1)
    means = table.iloc[training(ROWS)].mean()
    np.testing.assert_allclose(arrays(data)[0], table.fillna(means), rtol=1e-13)
    new = data.encoding.encode(gaps.iloc[[3]], targets=())
    np.testing.assert_allclose(new.x, table.iloc[[3]].fillna(means), rtol=1e-13)


def test_encoding_is_the_same_after_json(gaps: pd.DataFrame) -> None:
    options = TableOptions(missing="mean", categories="one-hot")
    encoding = load_frame(gaps, ["answer"], options=options).encoding
    again = TableEncoding.from_dict(json.loads(json.dumps(asdict(encoding))))
    assert again == encoding
    np.testing.assert_array_equal(again.encode(gaps).x, encoding.encode(gaps).x)
    for damaged in ({}, [], {"columns": 3}, {"columns": ["a"], "kinds": {"a": "guess"}}):
        with pytest.raises(DataError, match="not the columns of a table: "):
            TableEncoding.from_dict(damaged)


def test_columns_are_left_out(people: pd.DataFrame) -> None:
    data = load_frame(people, ["answer"], options=TableOptions(drop_columns=("city",)))
    assert (data.inputs, data.ignored) == (("age", "income", "member"), ())
    np.testing.assert_array_equal(arrays(data)[0], people[["age", "income", "member"]].astype(float))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"age": lambda f: f["age"].where(f.index != 4)}, {}, r"missing values in age \(1 row, first in row 5\);"),
        (
            {"age": lambda f: f["age"].where(f.index % 2 == 0), "city": lambda f: f["city"].where(f.index % 2 == 1)},
            {"missing": "drop"},
            "no row has all of its values",
        ),
        ({"age": lambda f: f["age"] / (f.index - 7)}, {}, "infinite values in 1 of 200 rows, first in row 8: age"),
        ({"z": lambda f: f["age"] * 1j}, {"categories": "error"}, "2 problems: .* text in z"),
        ({"z": lambda f: [[1]] * len(f)}, {}, "column 'z' holds objects that cannot be compared"),
        ({"answer": lambda f: 1.5}, {}, "target 'answer' has one value only: there is nothing to learn"),
    ],
)
def test_one_line_says_what_is_wrong(
    people: pd.DataFrame, change: dict[str, Callable[[pd.DataFrame], Any]], options: dict[str, Any], message: str
) -> None:
    options = {"categories": "one-hot"} | options
    with pytest.raises(DataError, match=message) as error:
        load_frame(people.assign(**change), ["answer"], options=TableOptions(**options))
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": "Oslo"}, "column 'city' has values that the training data did not have: 'Oslo' \\(200 rows\\)"),
        ({"age": "old"}, "age: no cell is a number \\('old' in row 1\\)"),
        ({"answer": "perhaps"}, "column 'answer' has values that the training data did not have: 'perhaps'"),
        ({"age": None}, "no column 'age', which the inputs need; it has city, income, member, answer"),
        ({"answer": None}, "no column 'answer', which holds targets"),
    ],
)
def test_table_that_changed_after_training(people: pd.DataFrame, changes: dict[str, Any], message: str) -> None:
    encoding = load_frame(people, ["answer"], options=ONE_HOT).encoding
    frame = people.assign(**changes).drop(columns=[name for name, value in changes.items() if value is None])
    with pytest.raises(DataError, match=message):
        encoding.encode(frame)


def test_missing_values_of_samples_to_predict_from(tmp_path: Path, gaps: pd.DataFrame) -> None:
    path = write_csv(gaps, tmp_path / "gaps.csv")
    for missing in ("error", "drop"):
        options = TableOptions(missing=missing, categories="one-hot")  # type: ignore[arg-type]
        complete = gaps.dropna()
        encoding = load_frame(complete, ["answer"], options=options).encoding
        with pytest.raises(DataError, match="missing values in 5 of 200 rows, first in row 4: age, city, income"):
            load_samples(path, 7, ["answer"], encoding=encoding)
    encoding = load_frame(gaps, ["answer"], options=TableOptions(missing="mean", categories="one-hot")).encoding
    assert load_samples(path, 7, ["answer"], encoding=encoding).x.shape == (200, 7)


def test_one_name_of_a_column_needs_no_list(tmp_path: Path, people: pd.DataFrame) -> None:
    people.to_csv(tmp_path / "people.csv", index=False)
    listed = load_frame(people, ["answer"], inputs=["age"], options=TableOptions(drop_columns=("city",)))
    for named in (
        load_frame(people, "answer", inputs="age", options=TableOptions(drop_columns="city")),
        load_file(tmp_path / "people.csv", "answer", inputs="age", options=TableOptions(drop_columns="city")),
    ):
        assert named.inputs == listed.inputs == ("age",)
        assert "city" not in named.ignored
        assert named.encoding.targets == ("answer",)
        x, y = named.encoding.encode(people, targets="answer")
        np.testing.assert_array_equal(x[:, 0], people["age"])
        assert [named.class_name(label) for label in y] == list(people["answer"].astype(str))


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("categories", "onehot", "must be 'error' or 'one-hot'"),
        ("missing", "median", "must be 'error', 'drop' or 'mean'"),
        ("csv.decimal", ";;", "refused by pandas.read_csv: Only length-1"),
        ("csv.keep_default_na", "no", "must be true or false"),
        ("csv.encoding", "utf-9", "refused by pandas.read_csv: unknown encoding: utf-9"),
        ("csv.skiprows", -1, "must be a whole number, 0 or more"),
        ("csv.header", 1.5, "must be a whole number, 0 or more"),
        ("csv.sep", "::", "refused by pandas.read_csv: the 'c' engine does not support "),
        ("csv.sep", ["a"], "refused by pandas.read_csv: 'list' object"),
        ("csv.encoding", "rot13", "refused by pandas.read_csv: 'rot13' is not a text encoding"),
    ],
)
def test_options_that_do_not_exist(option: str, value: str, allowed: str) -> None:
    section, _, key = option.rpartition(".")
    with pytest.raises(SettingError) as raised:
        TableOptions(**({section: {key: value}} if section else {option: value}))  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"data.{option} = {value!r}: {allowed}")


@pytest.mark.parametrize(
    ("targets", "request_", "message"),
    [
        ("answer", {"task": "regression", "options": ONE_HOT}, "answer: no cell is a number"),
        (["answer", "age"], {"options": ONE_HOT}, "answer: no cell is a number"),
        (["answer", "age"], {"task": "classification"}, "classification needs one target column, not 2"),
        ("answer", {"options": TableOptions(drop_columns="shoe")}, r"no column 'shoe', which data\.drop_columns names"),
        ("answer", {"options": TableOptions(drop_columns="answer")}, "each column only once"),
    ],
)
def test_requests_that_do_not_fit(people: pd.DataFrame, targets: Any, request_: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, SettingError), match=message):
        load_frame(people, targets, **request_)


def test_more_categories_than_inputs_are_allowed() -> None:
    frame = pd.DataFrame({"name": [f"Mx {number}" for number in range(1001)], "y": np.arange(1001) / 2})
    as_text = TableOptions(categories="one-hot", text_columns="name")
    assert load_frame(frame[:1000], ["y"], options=as_text).features == 1000
    with pytest.raises(DataError, match=r"text in name .*, 1,001 different values in 1,001 rows"):
        load_frame(frame, ["y"], options=ONE_HOT)
    with pytest.raises(DataError, match=r"^the frame: several columns are named 'name'$"):
        load_frame(frame.rename(columns={"y": "name"}), ["name"])


def test_frames_and_series_are_arrays(people: pd.DataFrame) -> None:
    numbers = people[["age", "income", "member"]]
    expected = numbers.astype(float).to_numpy()
    for frame in (numbers, numbers.convert_dtypes()):
        rows = as_rows(frame, frame["income"])
        np.testing.assert_array_equal(rows.x, expected)
        np.testing.assert_array_equal(rows.y[:, 0], people["income"])
        assert as_rows(frame, frame["member"]).targets_shape == ()
    with pytest.raises(DataError, match=r"x holds no numbers in city \(\w+\): hybridnn\.data\.load_frame makes"):
        as_rows(people[["age", "city"]], people["income"])
    with pytest.raises(DataError, match=r"y has dtype category: it must hold numbers, as y\.cat\.codes"):
        as_rows(numbers, pd.Series(people["age"].to_numpy()).astype("category"))
    nullable = numbers.convert_dtypes().astype({"age": "Int64"})
    nullable.loc[3, "age"] = pd.NA
    with pytest.raises(DataError, match="x has 1 missing value: "):
        as_rows(nullable, people["income"])
