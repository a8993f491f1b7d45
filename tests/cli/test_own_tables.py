"""Tables of users: columns by name, files from any folder, and the task in the header."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.cli.train_view import TrainView
from hybridnn.training.records import StepRecord
from reference.command_line import Run, assert_same_weights, error_line, records_of

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
    code, _, err = run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, "--out", "run", "-q")
    assert (code, err) == (0, "")
    return run_hybridnn


def figures(run: Run, *arguments: str) -> tuple[float, float, int]:
    code, text, err = run("evaluate", *arguments, "--format", "json")
    assert code == 0, err
    found = json.loads(text)
    return found["loss"], found["accuracy"], found["samples"]


def test_order_of_columns_changes_nothing(trained: Run, table: Callable[..., Any]) -> None:
    table("swapped.csv", ["churn", "income", "age"])
    table("whole.csv", ["age", "income", "churn"])
    expected = figures(trained, "run", "--data", "whole.csv")
    assert figures(trained, "run", "--data", "swapped.csv") == expected
    table("new.csv", ["income", "age"])
    rows = table("plain.csv", ["age", "income"])
    for file in ("new.csv", "plain.csv", "swapped.csv"):
        assert trained("predict", "run", file, "--force")[::2] == (0, "")
        Path("predictions.csv").rename(f"of-{file}")
    assert Path("of-new.csv").read_bytes() == Path("of-plain.csv").read_bytes() == Path("of-swapped.csv").read_bytes()
    # Without names, arrays are taken by position.
    np.savez("x.npz", np.array(rows, float))
    assert trained("predict", "run", "x.npz")[0] == 0
    assert Path("predictions.csv").read_bytes() == Path("of-new.csv").read_bytes()


def test_unused_columns_are_listed_and_may_have_any_content(trained: Run, table: Callable[..., Any]) -> None:
    table("named.csv", ["name", "income", "churn", "age"])
    table("whole.csv", ["age", "income", "churn"])
    warning = "Warning: named.csv: columns that the run was not trained on are ignored: name\n"
    code, text, err = trained("evaluate", "run", "--data", "named.csv", "--format", "json")
    assert (code, err) == (0, warning)
    assert json.loads(text)["loss"] == figures(trained, "run", "--data", "whole.csv")[0]
    code, _, err = trained("predict", "run", "named.csv")
    assert (code, err) == (0, warning)


@pytest.mark.parametrize(
    ("names", "header", "message"),
    [
        (["income", "churn"], None, "x.csv: no column 'age', which the inputs need; it has income, churn"),
        (["name", "churn"], None, "x.csv: no columns 'age', 'income', which the inputs need; it has name, churn"),
        (["age", "income", "churn"], ["Age", "income", "churn"], "x.csv: no column 'age', which the inputs need"),
        (["", "age", "income", "churn"], None, "x.csv: column 1 has no name (pandas writes its "),
        (["age", "income", "churn"], ["age", "age", "churn"], "x.csv: several columns are named 'age'"),
        (["age", "income", "churn"], ["age", "income", ""], "column 3 has no name (every column "),
    ],
)
def test_table_that_lacks_columns_or_names_is_refused(
    trained: Run, table: Callable[..., Any], names: list[str], header: list[str] | None, message: str
) -> None:
    table("x.csv", names, header)
    commands = [("predict", "run", "x.csv"), ("evaluate", "run", "--data", "x.csv")]
    if header is not None and "churn" not in header:
        commands.pop()  # for its target
    for command in commands:
        assert message in error_line(trained(*command))


def test_index_column_of_pandas_is_refused(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["", "age", "churn"])
    code, _, err = run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL)
    assert code == 2
    assert err == (
        "Error: num.csv: column 1 has no name "
        "(pandas writes its index so; df.to_csv(file, index=False) leaves it out)\n"
    )


def test_numbers_may_be_column_names(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["age", "income", "churn"], ["0", "1", "churn"])
    assert run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, "--out", "run", "-q")[0] == 0
    table("new.csv", ["age", "income"], ["0", "1"])
    assert run_hybridnn("predict", "run", "new.csv")[0] == 0
    table("new.csv", ["age", "income"], ["44", "38000"])
    code, _, err = run_hybridnn("predict", "run", "new.csv", "--force")
    assert (code, err) == (2, "Error: new.csv: the first line holds numbers; it must name the columns\n")


def test_run_without_names_takes_columns_by_position(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    rows = np.array(table("num.csv", ["age", "income", "churn"]), float)
    np.savez("num.npz", x_train=rows[:, :2], y_train=rows[:, 2].astype(int))
    assert run_hybridnn("train", "--file", "num.npz", *SMALL, "--out", "arrays", "-q")[0] == 0
    table("new.csv", ["age", "income"], ["first", "second"])
    assert run_hybridnn("predict", "arrays", "new.csv")[0] == 0
    code, _, err = run_hybridnn("predict", "arrays", "num.csv", "--force")
    assert (code, err) == (2, "Error: num.csv: samples of 3 features; the network takes 2\n")
    # A run on a table without the file of its columns has the names of its targets alone.
    assert run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, "--out", "old", "-q")[0] == 0
    assert 'inputs = [\n    "age",\n    "income",\n]\n' in Path("old/config.toml").read_text()
    Path("old/table.json").unlink()
    assert run_hybridnn("predict", "old", "num.csv", "--force")[0] == 0
    table("new.csv", ["age", "income"], ["first", "second"])
    assert run_hybridnn("predict", "old", "new.csv", "--force")[0] == 0


def test_inputs_can_be_chosen(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["name", "age", "churn", "income"])
    train = ("train", "--file", "num.csv", *CHURN, *SMALL)
    chosen = ("--set", 'data.inputs=["income", "age"]')
    assert run_hybridnn(*train, *chosen, "--out", "run", "-q")[::2] == (0, "")
    table("same.csv", ["income", "age", "churn"])
    assert run_hybridnn("train", "--file", "same.csv", *CHURN, *SMALL, "--out", "same", "-q")[0] == 0
    assert_same_weights("run", "same")
    assert run_hybridnn("evaluate", "run")[::2] == (0, "")
    wrong = ("--set", 'data.inputs=["age", "age"]')
    assert "data.inputs = ['age', 'age']: each name once" in run_hybridnn(*train, *wrong)[2]
    wrong = ("--set", 'data.inputs=["age", "churn"]')
    assert "data.inputs = ['age', 'churn']: each name once" in run_hybridnn(*train, *wrong)[2]
    assert "no column 'height'" in run_hybridnn(*train, "--set", 'data.inputs=["height"]')[2]
    np.savez("num.npz", x_train=np.ones((4, 2)), y_train=[0, 1, 0, 1])
    assert (
        "data.inputs = ['age']: only for tables"
        in run_hybridnn("train", "--file", "num.npz", "--set", 'data.inputs=["age"]')[2]
    )
    assert run_hybridnn("train", "--set", 'data.inputs=["age"]')[0] == 2


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("churn", "classification: 2 classes"),
        ("from 1", "classification: 2 classes (1, 2)"),
        ("point", "regression: point has decimal points"),
    ],
)
def test_header_has_the_task_and_its_reason(
    run_hybridnn: Run, table: Callable[..., Any], target: str, expected: str
) -> None:
    table("num.csv", ["age", "income", target])
    targets = ("--set", f'data.targets=["{target}"]')
    code, text, err = run_hybridnn("train", "--file", "num.csv", *targets, *SMALL, "--out", "run")
    assert (code, "Warning" in err) == (0, target == "point")
    assert [line.split(maxsplit=1)[1].strip() for line in text.splitlines() if line.startswith("task ")] == [expected]
    assert records_of("run")[0]["task"] == expected


def test_labels_with_decimal_points_are_warned_of(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["age", "income", "point"])
    train = ("train", "--file", "num.csv", "--targets", "point", *SMALL, "-q")
    warning = "has the values 0, 1 with decimal points: a regression; {} if they are labels\n"
    set_loss = warning.format("set model.loss to cross_entropy")
    for ranks in ((), ("--in-process", "2")):
        assert run_hybridnn(*train, *ranks)[::2] == (0, f"Warning: num.csv: point {set_loss}")
    for loss in ("mse", "cross_entropy"):
        assert run_hybridnn(*train, "--set", f"model.loss={loss}")[::2] == (0, "")
    rows = np.array(table("num.csv", ["age", "income", "point"]), float)
    np.savez("num.npz", x_train=rows[:, :2], y_train=rows[:, 2])
    found = run_hybridnn("train", "--file", "num.npz", *SMALL, "-q")[::2]
    assert found == (0, f"Warning: num.npz: y_train {warning.format('store integers')}")
    np.savez("num.npz", x_train=rows[:, :2], y_train=rows[:, 1])  # many whole numbers and others
    assert run_hybridnn("train", "--file", "num.npz", *SMALL, "-q")[::2] == (0, "")


def test_task_of_arrays_and_of_several_targets(run_hybridnn: Run, table: Callable[..., Any]) -> None:
    table("num.csv", ["age", "income", "churn"])
    both = ("--set", 'data.targets=["churn", "income"]')
    assert "regression: 2 target columns" in run_hybridnn("train", "--file", "num.csv", *both, *SMALL)[1]
    np.savez("num.npz", x_train=np.arange(20.0).reshape(10, 2), y_train=np.arange(10, dtype=np.float32) % 2)
    assert "regression: y_train is float32" in run_hybridnn("train", "--file", "num.npz", *SMALL)[1]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("columns", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_wide_table_is_trained_on_and_used(run_hybridnn: Run, columns: int) -> None:
    rows = [",".join(f"column {number}" for number in range(columns)) + ",churn"]
    rows += ["1," * columns + "0", "2," * columns + "1", "3," * columns + "0"]
    Path("wide.csv").write_text("\n".join(rows))
    small = ("--hidden", "2", "--epochs", "1", "-q", "--out", "run")
    assert run_hybridnn("train", "--file", "wide.csv", *CHURN, *small)[0] == 0
    assert records_of("run")[0]["sizes"] == [columns, 2, 2]
    assert run_hybridnn("predict", "run", "wide.csv")[::2] == (0, "")
    assert len(Path("predictions.csv").read_text().splitlines()) == 4


def change_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to another folder; returns the previous one."""
    before = Path.cwd()
    (before / "elsewhere").mkdir()
    monkeypatch.chdir(before / "elsewhere")
    return before


@pytest.mark.parametrize("standardize", ["true", "false"])
def test_data_are_found_from_another_folder_or_named_where_they_moved(
    run_hybridnn: Run, table: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, standardize: str
) -> None:
    table("num.csv", ["age", "income", "churn"])
    prepared = ("--set", f"data.standardize={standardize}", "--set", "optimizer.lr=1e-6")
    assert run_hybridnn("train", "--file", "num.csv", *CHURN, *SMALL, *prepared, "--out", "run", "-q")[0] == 0
    expected = figures(run_hybridnn, "run")
    of_train = figures(run_hybridnn, "run", "--data", "num.csv", "--part", "train")
    before = change_folder(monkeypatch)
    assert figures(run_hybridnn, "../run") == expected
    assert figures(run_hybridnn, "../run", "--data", "../num.csv") == expected
    (before / "num.csv").rename(before / "moved.csv")
    code, _, err = run_hybridnn("evaluate", "../run")
    assert (code, err) == (2, f"Error: data.file = '{before}/num.csv': no such file\n")
    loss, _, samples = figures(run_hybridnn, "../run", "--data", "../moved.csv")
    test, train = expected[2], of_train[2]
    assert samples == test + train == SAMPLES
    assert loss == pytest.approx((expected[0] * test + of_train[0] * train) / samples, rel=1e-9)
    assert run_hybridnn("predict", "../run", "../moved.csv")[0] == 0


def test_run_is_resumed_from_another_folder_and_with_its_columns_in_another_order(
    run_hybridnn: Run, table: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TrainView.on_step

    def on_step(view: TrainView, record: StepRecord) -> None:
        original(view, record)
        if record.step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    table("num.csv", ["age", "income", "churn"])
    train = ("train", "--file", "num.csv", *CHURN, *SMALL, "--set", "output.log_every=1", "-q")
    assert run_hybridnn(*train, "--out", "first")[0] == 0
    train = (*train, "--set", "model.init_from=first/weights.npz")
    assert run_hybridnn(*train, "--out", "uninterrupted")[0] == 0
    with monkeypatch.context() as armed:
        armed.setattr(TrainView, "on_step", on_step)
        armed.setattr("hybridnn.runs.hooks.AGREEMENT_SECONDS", 0.0)
        assert run_hybridnn(*train, "--out", "run")[0] == 75
    table("num.csv", ["churn", "income", "age"])
    before = change_folder(monkeypatch)
    assert run_hybridnn("train", "--resume", "../run", "-q")[::2] == (0, "")
    assert_same_weights(before / "run", before / "uninterrupted")


def test_whole_numbers_are_targets_of_a_regression_if_the_loss_says_so(run_hybridnn: Run) -> None:
    generator = np.random.default_rng(3)
    x, price = generator.normal(size=(SAMPLES, 2)), generator.integers(100, 999_999, SAMPLES)
    for name, points in (("whole", ""), ("decimal", ".0")):
        rows = "".join(f"{a!r},{b!r},{y}{points}\n" for (a, b), y in zip(x.tolist(), price.tolist(), strict=True))
        Path(f"{name}.csv").write_text(f"a,b,price\n{rows}")
    mse = ("--set", "model.loss=mse")
    code, text, err = run_hybridnn("train", "--file", "whole.csv", "--targets", "price", *SMALL, *mse, "--out", "whole")
    assert (code, err) == (0, "")
    assert "regression: by the loss, mse" in text
    decimal = ("train", "--file", "decimal.csv", "--targets", "price", *SMALL, "--out", "decimal", "-q")
    assert run_hybridnn(*decimal)[0] == 0
    assert_same_weights("whole", "decimal")
    evaluated = [json.loads(run_hybridnn("evaluate", name, "--format", "json")[1]) for name in ("whole", "decimal")]
    assert evaluated[0]["loss"] == evaluated[1]["loss"]
    assert evaluated[0]["targets"][0]["target"] == "price"
    np.savez("labels.npz", x_train=x, y_train=price)
    assert run_hybridnn("train", "--file", "labels.npz", *SMALL, *mse, "--out", "npz", "-q")[0] == 0
    assert_same_weights("npz", "decimal")
    refused = run_hybridnn("train", "--file", "whole.csv", "--targets", "price", *SMALL)
    assert "60 different whole numbers in 60 rows: set model.loss to mse for regression" in error_line(refused)
    labels = ("--set", "model.loss=cross_entropy", "--hidden", "6", "--epochs", "1")
    code, text, _ = run_hybridnn("train", "--file", "whole.csv", "--targets", "price", *labels)
    assert (code, "classification: 60 classes (" in text) == (0, True)


def test_several_targets_are_named_by_the_option(run_hybridnn: Run) -> None:
    table = np.random.default_rng(4).normal(size=(SAMPLES, 4))
    np.savetxt("four.csv", table, delimiter=",", header="a,b,y,z", comments="")
    assert run_hybridnn("train", "--file", "four.csv", "--targets", "z, y", *SMALL, "--out", "run", "-q")[0] == 0
    assert 'targets = [\n    "z",\n    "y",\n]' in Path("run/config.toml").read_text()
