"""Tables of users, on any number of ranks: columns by name, files from any folder, text and missing values."""

import csv
import json
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from hybridnn.data import split_indices
from reference.command_line import Run, assert_same_weights, error_line, output_of, records_of
from reference.own_tables import rows

SMALL = ("--hidden", "6", "--epochs", "3", "--batch-size", "16", "--set", "training.dtype=float64")
CHURN = ("--set", 'data.targets=["churn"]')
SAMPLES = 60


@pytest.fixture
def table() -> Callable[..., list[list[str]]]:
    """Write the same samples with any columns, in any order."""
    generator = np.random.default_rng(1)
    age, income = generator.integers(18, 80, SAMPLES), generator.normal(5e4, 2e4, SAMPLES).round(1)
    columns = {
        "age": [str(value) for value in age],
        "income": [str(value) for value in income],
        "churn": [str(int(value > 5e4)) for value in income],
        "name": [f"Mx {number}" for number in range(SAMPLES)],
        "": [str(number) for number in range(SAMPLES)],
        "from 1": [str(int(value > 5e4) + 1) for value in income],
        "point": [str(float(value > 5e4)) for value in income],
    }

    def write(path: str, names: Sequence[str], header: Sequence[str] | None = None) -> list[list[str]]:
        rows = [list(row) for row in zip(*(columns[name] for name in names), strict=True)]
        Path(path).write_text("".join(f"{','.join(row)}\n" for row in [list(header or names), *rows]))
        return rows

    return write


@pytest.fixture
def trained(run_hybridnn: Run, table: Callable[..., Any]) -> Run:
    """The command line in a folder with a run trained on ``age,income,churn``."""
    table("num.csv", ["age", "income", "churn"])
    output_of(run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, "--out", "run", "-q"))
    return run_hybridnn


def figures(run: Run, *arguments: str) -> tuple[float, float, int]:
    code, text, err = run("evaluate", *arguments, "--format", "json")
    assert code == 0, err
    found = json.loads(text)
    return found["loss"], found["accuracy"], found["samples"]


def test_order_of_columns_and_unused_ones_change_nothing(trained: Run, table: Callable[..., Any]) -> None:
    table("swapped.csv", ["churn", "income", "age"])
    table("whole.csv", ["age", "income", "churn"])
    table("named.csv", ["name", "income", "churn", "age"])
    expected = figures(trained, "run", "--data", "whole.csv")
    assert (
        figures(trained, "run", "--data", "swapped.csv") == figures(trained, "run", "--data", "named.csv") == expected
    )
    warning = "Warning: named.csv: columns that the run was not trained on are ignored: name\n"
    assert trained("evaluate", "run", "--data", "named.csv")[2] == warning
    # Without names, arrays are taken by position.
    np.savez("x.npz", np.array(table("plain.csv", ["age", "income"]), float))
    assert trained("predict", "run", "plain.csv", "--out", "expected.csv")[::2] == (0, "")
    for file, printed in (("swapped.csv", ""), ("named.csv", warning), ("x.npz", "")):
        assert trained("predict", "run", file, "--force", "--keep", "")[::2] == (0, printed)
        assert Path("predictions.csv").read_bytes() == Path("expected.csv").read_bytes()


def test_run_without_names_takes_columns_by_position(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    rows = np.array(table("num.csv", ["age", "income", "churn"]), float)
    np.savez("num.npz", x_train=rows[:, :2], y_train=rows[:, 2].astype(int))
    assert run_hybridnn("train", "--file", "num.npz", *SMALL, "--out", "arrays", "-q")[0] == 0
    table("new.csv", ["age", "income"], ["first", "second"])
    assert run_hybridnn("predict", "arrays", "new.csv")[0] == 0
    line = error_line(run_hybridnn("predict", "arrays", "num.csv", "--force"))
    assert line == "Error: num.csv: samples of 3 features; the network takes 2"
    # A run on a table without the file of its columns has the names of its targets alone.
    assert run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, "--out", "old", "-q")[0] == 0
    assert 'inputs = [\n    "age",\n    "income",\n]\n' in Path("old/config.toml").read_text()
    Path("old/table.json").unlink()
    for file in ("num.csv", "new.csv"):
        assert run_hybridnn("predict", "old", file, "--force")[0] == 0


def test_inputs_can_be_chosen(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["name", "age", "churn", "income"], ["name", "0", "churn", "1"])  # numbers may be names
    train = ("train", "--file", "num.csv", *CHURN, *SMALL)
    assert run_hybridnn(*train, "--set", 'data.inputs=["1", "0"]', "--out", "run", "-q")[::2] == (0, "")
    table("same.csv", ["income", "age", "churn"], ["1", "0", "churn"])
    assert run_hybridnn("train", "--file", "same.csv", *CHURN, *SMALL, "--out", "same", "-q")[0] == 0
    assert_same_weights("run", "same")
    assert run_hybridnn("evaluate", "run")[::2] == (0, "")
    for wrong, message in (("0", "data.inputs = ['0']: each column only once"), ("height", "no column 'height'")):
        assert message in error_line(run_hybridnn(*train, "--set", f'data.inputs=["0", "{wrong}"]'))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("churn", "classification: 2 classes (0, 1)"),
        ("from 1", "classification: 2 classes (1, 2)"),
        ("point", "regression: point has decimal points"),
        ("churn, income", "regression: 2 target columns"),
    ],
)
def test_header_has_the_task_and_its_reason(run_hybridnn, table, targets, expected) -> None:
    names = targets.split(", ")
    table("num.csv", ["age", "income", names[0]])
    code, text, err = run_hybridnn("train", "--file", "num.csv", "--targets", targets, *SMALL, "--out", "run")
    assert (code, "Warning" in err) == (0, targets == "point")
    assert [line.split(maxsplit=1)[1].strip() for line in text.splitlines() if line.startswith("task ")] == [expected]
    assert records_of("run")[0]["task"] == expected
    assert "targets = [\n" + "".join(f'    "{name}",\n' for name in names) + "]" in Path("run/config.toml").read_text()


def test_labels_with_decimal_points_are_warned_of(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    rows = np.array(table("num.csv", ["age", "income", "point"]), float)
    warning = "has the values 0, 1 with decimal points: a regression; {} if they are labels\n"
    of_table = f"Warning: num.csv: point {warning.format('set model.loss to cross_entropy')}"
    train = ("train", "--file", "num.csv", "--targets", "point", *SMALL, "-q", "--in-process", "2")
    assert run_hybridnn(*train)[::2] == (0, of_table)
    of_arrays = f"Warning: num.npz: y_train {warning.format('store integers')}"
    for y, printed in ((rows[:, 2], of_arrays), (rows[:, 1], "")):  # the others are many whole numbers and others
        np.savez("num.npz", x_train=rows[:, :2], y_train=y)
        assert run_hybridnn("train", "--file", "num.npz", *SMALL, "-q")[::2] == (0, printed)
    np.savez("num.npz", x_train=rows[:, :2], y_train=rows[:, 2].astype(np.float32))
    assert "regression: y_train is float32" in run_hybridnn("train", "--file", "num.npz", *SMALL)[1]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("columns", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_very_wide_table_is_trained_on_and_used(run_hybridnn: Run, columns: int) -> None:
    rows = [",".join(f"column {number}" for number in range(columns)) + ",churn"]
    rows += ["1," * columns + "no", "2," * columns + "yes", "3," * columns + "no"]
    Path("wide.csv").write_text("\n".join(rows))
    small = ("--hidden", "2", "--epochs", "1", "-q", "--out", "run")
    assert run_hybridnn("train", "--file", "wide.csv", *CHURN, *small)[0] == 0
    assert records_of("run")[0]["sizes"] == [columns, 2, 2]
    assert run_hybridnn("predict", "run", "wide.csv")[::2] == (0, "")
    assert len(Path("predictions.csv").read_text().splitlines()) == 4


def test_a_table_without_header_line_is_trained_on_and_used(run_hybridnn: Run) -> None:
    Path("mine.csv").write_text(rows("5.1,3.5,a", "4.9,3.0,b", "6.2,2.9,a").replace(",", ";"))
    options = ("--set", "data.csv.header=None", "--set", "data.csv.na_values=?,-999", "--targets", "2")
    assert run_hybridnn("train", "--file", "mine.csv", *options, *SMALL, "-q", "--out", "run")[::2] == (0, "")
    assert (
        '[data.csv]\nheader = "None"\nna_values = [\n    "?",\n    "-999",\n]\n' in Path("run/config.toml").read_text()
    )
    assert run_hybridnn("evaluate", "run")[::2] == run_hybridnn("predict", "run", "mine.csv")[::2] == (0, "")


def change_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to another folder; returns the previous one."""
    before = Path.cwd()
    (before / "elsewhere").mkdir()
    monkeypatch.chdir(before / "elsewhere")
    return before


@pytest.mark.parametrize("standardize", ["true", "false"])
def test_data_are_found_from_another_folder_or_named_where_they_moved(
    run_hybridnn, table, monkeypatch, standardize
) -> None:
    table("num.csv", ["age", "income", "churn"])
    prepared = ("--set", f"data.standardize={standardize}", "--set", "optimizer.lr=1e-6")
    code, _, err = run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, *prepared, "--out", "run", "-q")
    large = "Warning: num.csv: income has inputs beyond 1,000, which are hardly learned with data.standardize = false\n"
    assert (code, err) == (0, large if standardize == "false" else "")
    expected = figures(run_hybridnn, "run")
    of_train = figures(run_hybridnn, "run", "--data", "num.csv", "--part", "train")
    before = change_folder(monkeypatch)
    assert figures(run_hybridnn, "../run") == figures(run_hybridnn, "../run", "--data", "../num.csv") == expected
    (before / "num.csv").rename(before / "moved.csv")
    assert (
        error_line(run_hybridnn("evaluate", "../run"))
        == f"Error: {before}/num.csv: cannot be read: No such file or directory"
    )
    loss, _, samples = figures(run_hybridnn, "../run", "--data", "../moved.csv")
    test, train = expected[2], of_train[2]
    assert samples == test + train == SAMPLES
    assert loss == pytest.approx((expected[0] * test + of_train[0] * train) / samples, rel=1e-9)
    assert run_hybridnn("predict", "../run", "../moved.csv")[0] == 0


def test_run_is_resumed_from_another_folder_and_with_its_columns_in_another_order(
    trained, table, signal_at, monkeypatch
) -> None:
    train = ("train", "--file", "num.csv", *CHURN, *SMALL, "--set", "output.log_every=1", "-q")
    assert trained(*train, "--out", "uninterrupted")[0] == 0
    signal_at(2, signal.SIGUSR1)
    assert trained(*train, "--out", "stopped")[0] == 75
    table("num.csv", ["churn", "income", "age"])
    before = change_folder(monkeypatch)
    assert trained("train", "--resume", "../stopped", "-q")[::2] == (0, "")
    assert_same_weights(before / "stopped", before / "uninterrupted")


def test_whole_numbers_are_targets_of_a_regression_if_the_loss_says_so(run_hybridnn: Run) -> None:
    generator = np.random.default_rng(3)
    x, price = generator.normal(size=(SAMPLES, 2)), generator.integers(100, 999_999, SAMPLES)
    for name, points in (("whole", ""), ("decimal", ".0")):
        rows = "".join(f"{a!r},{b!r},{y}{points}\n" for (a, b), y in zip(x.tolist(), price.tolist(), strict=True))
        Path(f"{name}.csv").write_text(f"a,b,price\n{rows}")
    np.savez("labels.npz", x_train=x, y_train=price)
    mse, named = ("--set", "model.loss=mse"), ("--targets", "price")
    texts = {}
    for file, options in (("whole.csv", (*named, *mse)), ("decimal.csv", named), ("labels.npz", mse)):
        code, texts[file], err = run_hybridnn("train", "--file", file, *SMALL, *options, "--out", file[:-4])
        assert (code, err) == (0, "")
    assert "regression: by the loss, mse" in texts["whole.csv"]
    for run in ("decimal", "labels"):
        assert_same_weights("whole", run)
    evaluated = [json.loads(run_hybridnn("evaluate", name, "--format", "json")[1]) for name in ("whole", "decimal")]
    assert evaluated[0]["loss"] == evaluated[1]["loss"]
    assert evaluated[0]["targets"][0]["target"] == "price"
    refused = run_hybridnn("train", "--file", "whole.csv", *named, *SMALL)
    assert "60 different whole numbers in 60 rows; set model.loss to mse for regression" in refused[2].splitlines()[-1]
    labels = ("--set", "model.loss=cross_entropy", "--hidden", "6", "--epochs", "1")
    code, text, _ = run_hybridnn("train", "--file", "whole.csv", *named, *labels)
    assert (code, "classification: 60 classes (" in text) == (0, True)


TABLE = ("--set", "data.categories=one-hot", "--set", "data.missing=mean", "--set", 'data.drop_columns=["note"]')
PEOPLE = 150
OF_PEOPLE = ("--file", "people.csv", "--targets", "answer", *SMALL, "-q")


@pytest.fixture
def people() -> pd.DataFrame:
    """Write ``people.csv``."""
    rng = np.random.default_rng(2)
    age, city = rng.integers(18, 80, PEOPLE).astype(float), rng.choice(["Rome", "Oslo", "Bern"], PEOPLE)
    answer = np.where(age / 40 + (city == "Rome") + rng.normal(0, 0.2, PEOPLE) > 1.6, "yes", "no")
    age[[3, 50, 120]] = np.nan
    frame = pd.DataFrame({"age": age, "city": city, "note": "some text", "answer": answer})
    frame.to_csv("people.csv", index=False)
    return frame


def train_on_people(run: Run, *arguments: str, out: str = "run") -> str:
    return output_of(run("train", *OF_PEOPLE, *arguments, "--out", out))


def predicted(run: Run, file: str, *arguments: str) -> list[dict[str, str]]:
    output_of(run("predict", "run", file, "--out", "found.csv", "--force", *arguments))
    with Path("found.csv").open() as found:
        return list(csv.DictReader(found))


def test_a_table_with_text_and_gaps_is_trained_on_and_predicted_by_names(run_hybridnn, people) -> None:
    train_on_people(run_hybridnn, *TABLE)
    header = records_of("run")[0]
    assert (header["sizes"], header["task"]) == ([4, 6, 2], "classification: 2 classes (no, yes)")
    encoding = json.loads(Path("run/table.json").read_text())
    training = split_indices(PEOPLE, 0.2, seed=0)[0]
    assert encoding["means"][0] == pytest.approx(people["age"].iloc[training].mean(), rel=1e-12)
    rows = predicted(run_hybridnn, "people.csv")
    assert list(rows[0]) == ["class", "probability_no", "probability_yes"]
    for row in rows:
        assert (row["class"] == "yes") == (float(row["probability_yes"]) > 0.5)
    people[["city", "age"]].to_csv("other.csv", index=False)
    assert predicted(run_hybridnn, "other.csv") == rows
    found = json.loads(run_hybridnn("evaluate", "run", "--data", "people.csv", "--format", "json")[1])
    own = [row["class"] for row in rows]
    test = split_indices(PEOPLE, 0.2, seed=0)[1]
    expected: Any = metrics.classification_report(people["answer"].iloc[test], np.array(own)[test], output_dict=True)
    assert [item["name"] for item in found["classes"]] == ["no", "yes"]
    assert found["classes"][1]["recall"] == pytest.approx(expected["yes"]["recall"])
    assert found["accuracy"] == pytest.approx(expected["accuracy"])
    lines = run_hybridnn("evaluate", "run")[1].splitlines()
    assert [line.split()[0] for line in lines if line.split() and line.split()[0] in ("no", "yes")] == ["no", "yes"]


@pytest.mark.usefixtures("run_hybridnn", "people")
@pytest.mark.parametrize("ranks", [(), ("--in-process", "2")], ids=["one rank", "two ranks"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [((), "3 problems: "), (("--categories", "one-hot", "--drop", "note"), "missing values in age (3 rows, ")],
    ids=["several problems", "one problem"],
)
def test_training_shows_the_columns_of_a_table_that_is_refused(run_hybridnn, ranks, options, problem) -> None:
    code, out, err = run_hybridnn("train", *OF_PEOPLE, *options, *ranks)
    assert (code, out) == (2, "")
    checked = run_hybridnn("data", "check", "people.csv", "--targets", "answer", *options)[1]
    *columns, error = err.splitlines()
    assert columns[1:7] == checked.splitlines()[1:7]
    assert error.startswith(f"Error: people.csv: {problem}")


@pytest.mark.usefixtures("run_hybridnn", "people")
def test_short_options_of_the_check_are_those_of_training(run_hybridnn: Run) -> None:
    check = ("data", "check", "people.csv", "--targets", "answer")
    short = run_hybridnn(*check, "--drop", "note", "--missing", "mean", "--categories", "one-hot")
    assert short[::2] == (0, "")
    assert [line.split()[0] for line in short[1].splitlines()[3:6]] == ["age", "city", "answer"]
    names = ("drop_columns=note", "missing=mean", "categories=one-hot")
    assert short == run_hybridnn(*check, *(word for name in names for word in ("--set", f"data.{name}")))
    command = short[1].splitlines()[-1].split()
    assert run_hybridnn(*command[1:], *SMALL, "--out", "run")[0] == 0


UNSOLVED = "left out the command has no setting for the problems of these columns: "
FIRST = "first change the file, or add a setting to the command, for each problem that it does not solve"
RATES = rows("rate,size,y", "5%,#,p", "7%,#,q")


@pytest.mark.parametrize(
    ("text", "options", "shown", "settings"),
    [
        (RATES, "", f"{UNSOLVED}rate", "--set data.drop_columns=rate"),
        (
            RATES,
            "--set data.inputs=size,rate --set data.test_fraction=0.5",
            UNSOLVED,
            "--set data.inputs=size --set data.t",
        ),
        (
            rows("day,b,y", "1/2/2021,#,p", "1/3/2021,#,q"),
            "",
            "read dates with data.csv.parse_dates",
            "--set data.drop_columns=day",
        ),
        (rows("b,y", "#,null", "#,p", "#,q"), "", FIRST, ""),
        (rows("b,y", "#,1", "#,2", "#,none"), "", FIRST, ""),
        (rows("b,y", "7%,1", "9%,2"), "", FIRST, None),
    ],
)
def test_the_check_prints_a_command_and_what_it_does_not_solve(run_hybridnn, text, options, shown, settings) -> None:
    Path("mine.csv").write_text(text)
    code, out, _ = run_hybridnn("data", "check", "mine.csv", "--targets", "y", *options.split())
    command = f"hybridnn train --file mine.csv --targets y {settings}".strip()
    assert (code, shown in " ".join(out.split())) == (0, True), out
    assert out.splitlines()[-1].startswith(command) if settings is not None else "hybridnn train" not in out
    if settings:
        assert run_hybridnn(*shlex.split(out.splitlines()[-1])[1:], *SMALL, "-q")[0] == 0


def test_trains_on_everything(run_hybridnn: Run, people: pd.DataFrame) -> None:
    everything = (*TABLE, "--set", "data.test_fraction=0")
    text = train_on_people(run_hybridnn, *everything)
    header, *records = records_of("run")
    assert (header["train_samples"], header["test_samples"]) == (PEOPLE, 0)
    assert "test" not in text.split("epoch")[1]
    assert "training loss" in text
    assert {record["validation_loss"] for record in records if record["kind"] == "epoch"} == {None}
    assert not Path("run/best-weights.npz").exists()
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json")[1])
    assert (found["part"], found["samples"]) == ("all", PEOPLE)
    assert "no test part" in error_line(run_hybridnn("evaluate", "run", "--part", "test"))
    for command in (("report", "run", "run"), ("report", "run")):
        assert run_hybridnn(*command)[0] == 0
    train_on_people(run_hybridnn, *everything, "--in-process", "2", "--set", "data.distribution=scatter", out="two")
    assert_same_weights("two", "run", 1e-10)


def test_class_that_only_test_samples_have_is_said(run_hybridnn: Run, people: pd.DataFrame) -> None:
    people.loc[split_indices(PEOPLE, 0.2, seed=0)[1][0], "answer"] = "perhaps"
    people.to_csv("people.csv", index=False)
    for ranks in ((), ("--in-process", "2")):
        code, _, err = run_hybridnn("train", *OF_PEOPLE, *TABLE, *ranks)
        expected = "Warning: people.csv: no training sample, only test samples, of class perhaps\n"
        assert (code, err) == (0, expected)


def test_rows_with_gaps_are_left_out_of_training_and_evaluation(run_hybridnn: Run, people: pd.DataFrame) -> None:
    drop = (*TABLE, "--set", "data.missing=drop")
    train_on_people(run_hybridnn, *drop)
    header = records_of("run")[0]
    assert header["train_samples"] + header["test_samples"] == PEOPLE - 3
    left_out = "3 of 150 rows have missing values and are left out"
    assert header["task"] == f"classification: 2 classes (no, yes); {left_out}"
    people.dropna().to_csv("people.csv", index=False)
    train_on_people(run_hybridnn, *drop, "--in-process", "2", out="complete")
    assert_same_weights("run", "complete", 1e-10)
    people.to_csv("new.csv", index=False)
    found = json.loads(run_hybridnn("evaluate", "run", "--data", "new.csv", "--format", "json")[1])
    assert found["samples"] == PEOPLE - 3
    assert "missing values in 3 of 150 rows, first in row 4: age" in error_line(
        run_hybridnn("predict", "run", "new.csv")
    )


def test_damaged_file_of_columns_is_named(run_hybridnn: Run, people: pd.DataFrame) -> None:
    train_on_people(run_hybridnn, *TABLE)
    sound = Path("run/table.json").read_text()
    for damaged, message in (
        ("{", "run/table.json"),
        ("[]", "run/table.json: not the columns of a table"),
        (sound.replace('"Oslo", ', ""), "run/table.json is for other data than run/weights.npz: their sizes differ"),
    ):
        Path("run/table.json").write_text(damaged)
        assert message in error_line(run_hybridnn("predict", "run", "people.csv"))
