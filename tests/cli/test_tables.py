"""Tables with text, categories and missing values, from `train` to `predict` and `evaluate`, on any number of ranks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from hybridnn.datasets import split_indices
from reference.command_line import Run, assert_same_weights, error_line, records_of

SMALL = ("--hidden", "6", "--epochs", "4", "--batch-size", "32", "--set", "training.dtype=float64", "-q")
TABLE = ("--set", "data.categories=one-hot", "--set", "data.missing=mean", "--set", 'data.drop_columns=["note"]')
SAMPLES = 150


@pytest.fixture
def people() -> pd.DataFrame:
    """Write ``people.csv``."""
    rng = np.random.default_rng(2)
    age, city = rng.integers(18, 80, SAMPLES).astype(float), rng.choice(["Rome", "Oslo", "Bern"], SAMPLES)
    answer = np.where(age / 40 + (city == "Rome") + rng.normal(0, 0.2, SAMPLES) > 1.6, "yes", "no")
    age[[3, 50, 120]] = np.nan
    frame = pd.DataFrame({"age": age, "city": city, "note": "some text", "answer": answer})
    frame.to_csv("people.csv", index=False)
    return frame


def train(run: Run, *arguments: str, out: str = "run") -> str:
    code, text, err = run("train", "--file", "people.csv", "--targets", "answer", *SMALL, *arguments, "--out", out)
    assert (code, err) == (0, "")
    return text


def predicted(run: Run, file: str, *arguments: str) -> list[dict[str, str]]:
    code, _, err = run("predict", "run", file, "--out", "found.csv", "--force", *arguments)
    assert (code, err) == (0, "")
    with Path("found.csv").open() as found:
        return list(csv.DictReader(found))


def test_a_table_with_text_and_gaps_is_trained_on_and_predicted_by_names(
    run_hybridnn: Run, people: pd.DataFrame
) -> None:
    train(run_hybridnn, *TABLE)
    header = records_of("run")[0]
    assert (header["sizes"], header["task"]) == ([4, 6, 2], "classification: 2 classes (no, yes)")
    encoding = json.loads(Path("run/table.json").read_text())
    training = split_indices(SAMPLES, 0.2, seed=0)[0]
    assert encoding["means"][0] == pytest.approx(people["age"].iloc[training].mean(), rel=1e-12)
    rows = predicted(run_hybridnn, "people.csv")
    assert list(rows[0]) == ["class", "probability_no", "probability_yes"]
    for row in rows:
        assert (row["class"] == "yes") == (float(row["probability_yes"]) > 0.5)
    found = json.loads(run_hybridnn("evaluate", "run", "--data", "people.csv", "--format", "json")[1])
    own = [row["class"] for row in rows]
    test = split_indices(SAMPLES, 0.2, seed=0)[1]
    expected: Any = metrics.classification_report(people["answer"].iloc[test], np.array(own)[test], output_dict=True)
    assert [item["name"] for item in found["classes"]] == ["no", "yes"]
    assert found["classes"][1]["recall"] == pytest.approx(expected["yes"]["recall"])
    assert found["accuracy"] == pytest.approx(expected["accuracy"])
    lines = run_hybridnn("evaluate", "run")[1].splitlines()
    assert [line.split()[0] for line in lines if line.split() and line.split()[0] in ("no", "yes")] == ["no", "yes"]
    assert run_hybridnn("evaluate", "run", "--picture", "matrix.svg")[0] == 0
    assert ">yes</text>" in Path("matrix.svg").read_text()


def test_two_ranks_and_columns_in_another_order_change_nothing(run_hybridnn: Run, people: pd.DataFrame) -> None:
    train(run_hybridnn, *TABLE)
    train(run_hybridnn, *TABLE, "--in-process", "2", out="two")
    with np.load("run/weights.npz") as one, np.load("two/weights.npz") as two:
        for name in one:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-10, atol=1e-12)
    assert Path("run/table.json").read_bytes() == Path("two/table.json").read_bytes()
    expected = predicted(run_hybridnn, "people.csv")
    people[["city", "age"]].to_csv("other.csv", index=False)
    assert predicted(run_hybridnn, "other.csv") == expected
    rows = predicted(run_hybridnn, "people.csv", "--in-process", "2")
    assert [row["class"] for row in rows] == [row["class"] for row in expected]


@pytest.mark.parametrize("form", ["parquet", "decimal commas"])
def test_every_form_of_a_table_is_trained_on_evaluated_and_predicted(
    run_hybridnn: Run, people: pd.DataFrame, form: str
) -> None:
    people["age"] += 0.25
    people.to_csv("people.csv", index=False)
    train(run_hybridnn, *TABLE)
    expected = predicted(run_hybridnn, "people.csv")
    file, options = "other.csv", ("--set", "data.decimal=,")
    if form == "parquet":
        pytest.importorskip("pyarrow")
        file, options = "other.parquet", ()
        people.to_parquet(file)
    else:
        people.to_csv(file, index=False, sep=";", decimal=",")
        assert ",25;" in Path(file).read_text()
    Path("run").rename("of-csv")
    command = ("train", "--file", file, "--targets", "answer", *SMALL, *TABLE, *options, "--out", "run")
    assert run_hybridnn(*command)[::2] == (0, "")
    assert_same_weights("run", "of-csv")
    assert predicted(run_hybridnn, file) == expected
    figures = [
        json.loads(run_hybridnn("evaluate", run, *data, "--format", "json")[1])
        for run, data in (("of-csv", ()), ("run", ()), ("run", ("--data", file)))
    ]
    assert figures[0]["accuracy"] == figures[1]["accuracy"] == figures[2]["accuracy"]
    assert figures[0]["loss"] == figures[1]["loss"] == figures[2]["loss"]


def test_truth_values_are_given_back(run_hybridnn: Run, people: pd.DataFrame) -> None:
    people["answer"] = people["answer"] == "yes"
    people.to_csv("people.csv", index=False)
    train(run_hybridnn, *TABLE, "--epochs", "30", "--lr", "0.1")
    rows = predicted(run_hybridnn, "people.csv")
    assert list(rows[0]) == ["class", "probability_False", "probability_True"]
    classes = [row["class"] for row in rows]
    assert set(classes) == {"False", "True"}
    assert np.mean([name == str(answer) for name, answer in zip(classes, people["answer"], strict=True)]) > 0.7
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json")[1])
    assert [item["name"] for item in found["classes"]] == ["False", "True"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"city": "Paris"},
            "column 'city' has values that the training data did not have: 'Paris' (150 rows)",
        ),
        ({"age": "old"}, "new.csv: text in age (150 rows, 'old' in row 1)"),
        ({"age": None}, "new.csv: no column 'age', which the inputs need; it has city, note, answer"),
    ],
)
def test_table_that_changed_after_training_is_refused(
    run_hybridnn: Run, people: pd.DataFrame, changes: dict[str, Any], message: str
) -> None:
    train(run_hybridnn, *TABLE)
    new = people.assign(**changes).drop(columns=[name for name, value in changes.items() if value is None])
    new.to_csv("new.csv", index=False)
    for command in (("predict", "run", "new.csv"), ("evaluate", "run", "--data", "new.csv")):
        assert message in error_line(run_hybridnn(*command))
        assert message in error_line(run_hybridnn(*command, "--in-process", "2"))


def test_trains_on_everything(run_hybridnn: Run, people: pd.DataFrame) -> None:
    text = train(run_hybridnn, *TABLE, "--set", "data.test_fraction=0")
    header, *records = records_of("run")
    assert (header["train_samples"], header["test_samples"]) == (SAMPLES, 0)
    assert "test" not in text.split("epoch")[1]
    assert "training loss" in text
    assert {record["test_loss"] for record in records if record["kind"] == "epoch"} == {None}
    assert not Path("run/best-weights.npz").exists()
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json")[1])
    assert (found["part"], found["samples"]) == ("all", SAMPLES)
    assert "no test part" in error_line(run_hybridnn("evaluate", "run", "--part", "test"))
    assert run_hybridnn("compare", "run", "run")[0] == 0
    assert run_hybridnn("report", "run")[0] == 0
    train(run_hybridnn, *TABLE, "--set", "data.test_fraction=0", "--in-process", "2", out="two")
    train(run_hybridnn, *TABLE, "--set", "data.test_fraction=0", "--set", "data.distribution=scatter", out="three")
    assert_same_weights("run", "three")


def test_data_sets_of_the_catalogue_train_on_everything(run_hybridnn: Run) -> None:
    small = ("--set", "data.synthetic.samples=64", "--set", "data.synthetic.test_samples=8", "--hidden", "4", "-q")
    assert run_hybridnn("train", "--data", "synthetic", *small, "--epochs", "1", "--out", "run")[0] == 0
    assert records_of("run")[0]["test_samples"] == 8  # its own test samples are kept


def test_class_that_only_test_samples_have_is_said(run_hybridnn: Run, people: pd.DataFrame) -> None:
    test = split_indices(SAMPLES, 0.2, seed=0)[1]
    people.loc[test[0], "answer"] = "perhaps"
    people.to_csv("people.csv", index=False)
    for ranks in ((), ("--in-process", "2")):
        code, _, err = run_hybridnn("train", "--file", "people.csv", "--targets", "answer", *SMALL, *TABLE, *ranks)
        expected = "Warning: people.csv: no training sample, only test samples, of class perhaps\n"
        assert (code, err) == (0, expected)


def test_rows_with_gaps_are_left_out_of_training_and_evaluation(run_hybridnn: Run, people: pd.DataFrame) -> None:
    drop = ("--set", "data.missing=drop", "--set", "data.categories=one-hot", "--set", 'data.drop_columns=["note"]')
    train(run_hybridnn, *drop)
    header = records_of("run")[0]
    assert header["train_samples"] + header["test_samples"] == SAMPLES - 3
    assert header["task"].endswith("; 3 of 150 rows have missing values and are left out")
    people.dropna().to_csv("people.csv", index=False)
    train(run_hybridnn, *drop, out="complete")
    assert_same_weights("run", "complete")
    people.to_csv("new.csv", index=False)
    found = json.loads(run_hybridnn("evaluate", "run", "--data", "new.csv", "--format", "json")[1])
    assert found["samples"] == SAMPLES - 3
    assert "missing values in 3 of 150 rows: age (3 rows)" in error_line(run_hybridnn("predict", "run", "new.csv"))


def test_damaged_file_of_columns_is_named(run_hybridnn: Run, people: pd.DataFrame) -> None:
    train(run_hybridnn, *TABLE)
    sound = Path("run/table.json").read_text()
    for damaged, message in (
        ("{", "run/table.json"),
        ("[]", "run/table.json: not the columns of a table"),
        (sound.replace('"Oslo", ', ""), "run/table.json is for other data than run/weights.npz: their sizes differ"),
    ):
        Path("run/table.json").write_text(damaged)
        assert message in error_line(run_hybridnn("predict", "run", "people.csv"))


def test_a_wide_table_that_cannot_be_used_is_refused_in_one_line(run_hybridnn: Run) -> None:
    columns = 20_000
    header = ",".join(f"column {number}" for number in range(columns))
    Path("wide.csv").write_text(f"{header},y\n{'x,' * columns}0\n{'1,' * columns}1\n")
    line = error_line(run_hybridnn("train", "--file", "wide.csv", "--targets", "y"))
    assert "column 0 (1 row, 'x' in row 1), column 1" in line
    assert " and more columns; set data.categories" in line
    assert len(line) < 1500
