"""Results of an evaluation: those of the run on its own data, those of plain formulas on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.data import Standardizer, load_dataset, split
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.inference import Evaluation, evaluate_run
from hybridnn.runs.trained_run import open_run
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, regression_file, train, weights_of


def evaluated(run: Path, source: str | Path | None = None, **choice: Any) -> Evaluation:
    return evaluate_run(open_run(run), ProcessGrid(), None if source is None else str(source), **choice)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "digits"},
        {"name": "digits", "split_seed": 5},
        {"name": "synthetic"},
        {"file": "mine.npz"},
        {"file": "mine.npz", "standardize": False},
    ],
)
def test_figures_are_those_of_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    regression_file(tmp_path / "mine.npz")
    training = {"epochs": 2, "batch_size": 64, "dtype": "float64", "clip_norm": 1e-3}
    last = train(tmp_path / "run", data=data, model={"hidden": [12]}, training=training)
    found = evaluated(tmp_path / "run").metrics
    assert (found.loss, found.accuracy, found.r2) == (
        last.validation_loss,
        last.validation_accuracy,
        last.validation_r2,
    )


def test_split_seed_holds_the_test_samples_while_the_seed_of_the_training_varies(tmp_path: Path) -> None:
    found = {}
    for name, seed, held in (("a", 0, 7), ("b", 1, 7), ("c", 7, None), ("d", 1, None)):
        data = {"name": "digits", "standardize": True} | ({} if held is None else {"split_seed": held})
        options: dict[str, Any] = {"data": data, "training": {"epochs": 1, "seed": seed}, "model": {"hidden": [4]}}
        found[name] = train(tmp_path / name, **options).validation_loss
        with np.load(tmp_path / name / "standardization.npz") as file:
            found[name + " x"] = file["x_mean"].tobytes()
    assert found["a x"] == found["b x"] == found["c x"] != found["d x"]
    assert len({found["a"], found["b"], found["c"]}) == 3, "other initial weights and orders"
    train_rows, _ = split(load_dataset("digits").train, 0.2, 7)
    assert Standardizer.fit(train_rows).x_mean.tobytes() == found["a x"]


def standardized(run: Path, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.load(run / "standardization.npz") as file:
        return (x - file["x_mean"]) / file["x_scale"], (y - file["y_mean"]) / file["y_scale"]


def other_samples(count: int = 23) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(77)
    return generator.normal(size=(count, FEATURES)) * 30 + 11, generator.normal(size=(count, 3)) * 100


def test_other_data_are_standardized_as_the_run_was(regression: Path, tmp_path: Path) -> None:
    x, y = other_samples()
    np.savez(tmp_path / "whole.npz", x_train=x, y_train=y)
    np.savez(tmp_path / "parts.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    for name, choice, part, rows in (
        ("whole.npz", {}, "all", slice(0, None)),
        ("parts.npz", {}, "test", slice(9, None)),
        ("parts.npz", {"part": "test"}, "test", slice(9, None)),
        ("parts.npz", {"part": "train"}, "train", slice(0, 9)),
    ):
        found = evaluated(regression, tmp_path / name, **choice)
        inputs, targets = standardized(regression, x[rows], y[rows])
        outputs, _ = net.forward(NETWORK, weights_of(regression), inputs)
        assert (found.part, found.data, found.metrics.samples) == (part, str(tmp_path / name), len(inputs))
        assert found.metrics.loss == pytest.approx(net.loss(NETWORK, outputs, targets), rel=1e-12)
        assert found.metrics.r2 == pytest.approx(net.r2(outputs, targets), rel=1e-10)


def test_parts_of_the_own_data_are_those_of_the_run(regression: Path) -> None:
    assert evaluated(regression).metrics.samples == 11
    assert evaluated(regression, part="train").metrics.samples == 46
    own = regression.parent / "mine.npz"  # the same data by its name are split in the same way
    assert evaluated(regression, own) == evaluated(regression)
    with np.load(own) as file:
        x, y = file["x_train"], file["y_train"]
    inputs, targets = standardized(regression, x, y)
    outputs, _ = net.forward(NETWORK, weights_of(regression), inputs)
    both = 11 * evaluated(regression).metrics.loss + 46 * evaluated(regression, part="train").metrics.loss
    assert both / 57 == pytest.approx(net.loss(NETWORK, outputs, targets), rel=1e-12)


def test_accuracy_of_other_labels(digits: Path, tmp_path: Path) -> None:
    data = load_dataset("digits").train
    x, y = np.empty((30, 64)), np.empty(30, np.int64)
    data.take(np.arange(30), x, y)
    y[::2] = (y[::2] + 1) % 9
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y)
    with np.load(digits / "standardization.npz") as file:
        inputs = (x - file["x_mean"]) / file["x_scale"]
    outputs, _ = net.forward(net.Network((64, 12, 10)), weights_of(digits), inputs)
    found = evaluated(digits, tmp_path / "other.npz").metrics
    assert found.accuracy == net.accuracy(outputs, y)
    assert found.loss == pytest.approx(net.loss(net.Network((64, 12, 10), loss="cross_entropy"), outputs, y), rel=1e-12)


def test_csv_takes_its_target_columns_from_the_run_or_from_the_call(tmp_path: Path) -> None:
    def table(name: str, header: str) -> Path:
        generator = np.random.default_rng(3)
        lines = [",".join(map(str, row)) for row in generator.normal(size=(20, 3)).tolist()]
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")
        return tmp_path / name

    data = {"file": str(table("mine.csv", "a,b,c")), "targets": ["c"]}
    train(tmp_path / "run", data=data, model={"hidden": [4]}, training={"epochs": 1, "batch_size": 5})
    expected = evaluated(tmp_path / "run", table("same.csv", "a,b,c")).metrics
    assert expected.samples == 20
    assert evaluated(tmp_path / "run", table("other.csv", "a,b,z"), targets=("z",)).metrics == expected
    with pytest.raises(DataError, match=r"no column 'c', which holds targets; it has a, b, z"):
        evaluated(tmp_path / "run", tmp_path / "other.csv")
    (tmp_path / "whole.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")  # integers, which are numbers in this run
    assert evaluated(tmp_path / "run", tmp_path / "whole.csv").metrics.accuracy is None


def test_data_of_another_kind_are_refused(regression: Path, digits: Path, tmp_path: Path) -> None:
    good = {"x_train": np.ones((4, FEATURES)), "y_train": np.ones((4, 3))}
    other = {"x_train": np.ones((20, 64)), "y_train": np.arange(20) % 11}
    for run, arrays, message in (
        (regression, good | {"x_train": np.ones((4, 6))}, "other.npz has 6 features; .*run was trained on 5"),
        (regression, good | {"y_train": np.ones((4, 2))}, "other.npz has 2 targets; .*run was trained on 3"),
        (regression, good | {"x_train": np.full((4, FEATURES), np.nan)}, "x_train is nan in row 0, column 0"),
        (digits, other, r"has 11 classes; .* was trained on 10"),
    ):
        np.savez(tmp_path / "other.npz", **arrays)  # type: ignore[arg-type]  # arrays by name
        with pytest.raises(DataError, match=message):
            evaluated(run, tmp_path / "other.npz")
    with pytest.raises(DataError, match=r"digits is for classification; .* was trained for regression"):
        evaluated(regression, "digits")


def test_wrong_choices_are_refused(regression: Path, tmp_path: Path) -> None:
    x, y = other_samples()
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y)
    choices: list[tuple[dict[str, Any], str]] = [({"part": "test"}, "--part"), ({"targets": ("a",)}, "--targets")]
    for choice, setting in choices:
        with pytest.raises(SettingError) as error:
            evaluated(regression, tmp_path / "other.npz", **choice)
        assert error.value.setting == setting
    with pytest.raises(SettingError, match=r"data\.name = ''"):
        evaluated(regression, "")
