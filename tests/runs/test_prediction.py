"""Predictions against plain formulas: in the units of the targets and the order of the samples."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn import ProcessGrid
from hybridnn.errors import DataError
from hybridnn.runs import inference
from hybridnn.runs.inference import Predictions, evaluate_run, predict_file
from hybridnn.runs.trained_run import open_run
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, train, weights_of


def predicted(run: Path, file: Path) -> Predictions:
    found = predict_file(open_run(run), ProcessGrid(), file)
    assert found is not None
    return found


def outputs_of(run: Path, network: net.Network, x: NDArray[Any]) -> NDArray[Any]:
    with np.load(run / "standardization.npz") as file:
        return net.forward(network, weights_of(run), (x - file["x_mean"]) / file["x_scale"])[0]


def test_numbers_are_in_the_units_of_the_targets(
    regression: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(4).normal(size=(37, FEATURES)) * 20
    np.savez(tmp_path / "x.npz", x=x, unused=np.zeros(2))
    with np.load(regression / "standardization.npz") as file:
        expected = outputs_of(regression, NETWORK, x) * file["y_scale"] + file["y_mean"]
    for block_elements in (inference.BLOCK_ELEMENTS, 1):  # at once, and in portions
        monkeypatch.setattr(inference, "BLOCK_ELEMENTS", block_elements)
        found = predicted(regression, tmp_path / "x.npz")
        np.testing.assert_allclose(found.values, expected, rtol=1e-12)
        assert found.classes is None
        assert found.columns == ("target_0", "target_1", "target_2")


@pytest.mark.filterwarnings("error")
def test_a_prediction_that_overflows_is_refused(regression: Path, tmp_path: Path) -> None:
    x = np.ones((3, FEATURES))
    x[1:] = 1.7e308
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(
        DataError, match=r"x\.npz: the prediction overflows \(2 rows, first row 2\): its inputs are far"
    ):
        predicted(regression, tmp_path / "x.npz")


def test_float32_keeps_small_changes_about_a_large_mean(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(60, 2)) + 1e6
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=x[:, :1] + 1e7)
    train(tmp_path / "run", data={"file": str(tmp_path / "mine.npz")}, model={"hidden": [4]}, training={"epochs": 1})
    np.savez(tmp_path / "x.npz", x[:9])
    found = predicted(tmp_path / "run", tmp_path / "x.npz").values
    with np.load(tmp_path / "run" / "standardization.npz") as file:
        expected = outputs_of(tmp_path / "run", net.Network((2, 4, 1)), x[:9]) * file["y_scale"] + file["y_mean"]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)  # a float32 of this size is right to 0.5


def test_classes_and_probabilities(digits: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(4).integers(17, size=(21, 64))
    np.savez(tmp_path / "x.npz", x=x)
    found = predicted(digits, tmp_path / "x.npz")
    outputs = outputs_of(digits, net.Network((64, 12, 10)), x)
    np.testing.assert_allclose(found.values, [np.exp(net.log_softmax(row)) for row in outputs], rtol=1e-11)
    assert found.classes is not None
    assert found.classes.tolist() == [int(np.argmax(row)) for row in outputs]
    assert found.columns[3] == "probability_3"


def test_samples_of_a_csv_with_and_without_the_target_column(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    table = generator.normal(size=(20, 3))
    np.savetxt(tmp_path / "mine.csv", table, delimiter=",", header="a,speed,c", comments="")
    np.savetxt(tmp_path / "x.csv", table[:, [0, 2]], delimiter=",", header="a,c", comments="")
    np.savez(tmp_path / "x.npz", table[:, [0, 2]])
    data = {"file": str(tmp_path / "mine.csv"), "targets": ["speed"]}
    train(tmp_path / "run", data=data, model={"hidden": [4]}, training={"epochs": 1, "batch_size": 5})
    found = [predicted(tmp_path / "run", tmp_path / name) for name in ("mine.csv", "x.csv", "x.npz")]
    assert found[0].columns == ("speed",)
    assert found[0].values.shape == (20, 1)
    assert found[0].values.tolist() == found[1].values.tolist() == found[2].values.tolist()
    np.savetxt(tmp_path / "more.csv", table, delimiter=",", header="a,b,c", comments="")
    more = predicted(tmp_path / "run", tmp_path / "more.csv")
    assert (more.values.tolist(), more.ignored) == (found[0].values.tolist(), ("b",))
    np.savez(tmp_path / "more.npz", table)
    with pytest.raises(DataError, match=r"more\.npz: samples of 3 features; the network takes 2"):
        predicted(tmp_path / "run", tmp_path / "more.npz")


@pytest.mark.parametrize(("sign", "other"), [(".", ","), (",", ".")])
def test_a_file_with_the_other_decimal_sign_is_refused(sign: str, other: str, tmp_path: Path) -> None:
    table = np.random.default_rng(3).normal(size=(20, 3))
    text = "a;b;y\n" + "\n".join(";".join(f"{number:.4f}" for number in row) for row in table)
    for name, of_file in (("mine.csv", sign), ("other.csv", other)):
        (tmp_path / name).write_text(text.replace(".", of_file))
    data = {"file": str(tmp_path / "mine.csv"), "targets": ["y"], "csv": {"decimal": sign}}
    train(tmp_path / "run", data=data, model={"hidden": [4]}, training={"epochs": 1, "batch_size": 5})
    message = (
        rf"other\.csv: .* a: numbers are written as '.*\{other}.*'.*; the file must write them as that of the training$"
    )
    with pytest.raises(DataError, match=message):
        predicted(tmp_path / "run", tmp_path / "other.csv")
    with pytest.raises(DataError, match=message):
        evaluate_run(open_run(tmp_path / "run"), ProcessGrid(), str(tmp_path / "other.csv"))
    (tmp_path / "text.csv").write_text(f"a;b\n1;x\n2;1{other}5\n")
    with pytest.raises(DataError, match=r"text\.csv: b: no cell is a number \('x' in row 1, '1.5' in row 2\)"):
        predicted(tmp_path / "run", tmp_path / "text.csv")


def test_without_standardization_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(20, 2))
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=x.sum(axis=1))
    settings = {"model": {"hidden": [4]}, "training": {"epochs": 1, "dtype": "float64"}}
    train(tmp_path / "run", data={"file": str(tmp_path / "mine.npz"), "standardize": False}, **settings)
    np.savez(tmp_path / "x.npz", x)
    expected, _ = net.forward(net.Network((2, 4, 1)), weights_of(tmp_path / "run"), x)
    np.testing.assert_allclose(predicted(tmp_path / "run", tmp_path / "x.npz").values, expected, rtol=1e-12)


def test_files_hold_every_digit() -> None:
    values = np.array([[0.1 + 0.2, 1e-300], [1 / 3, 2.0]])
    for columns, classes, arrays in (
        (("a, b", "c"), None, {"predictions": values.tolist()}),
        (("probability_0", "probability_1"), [0, 1], {"classes": [0, 1], "probabilities": values.tolist()}),
    ):
        found = Predictions(columns, values, None if classes is None else np.array(classes))
        header, *rows = csv.reader(io.StringIO(found.to_csv().decode()))
        first = 0 if classes is None else 1
        assert header == [*["class"][:first], *columns]
        assert [[float(cell) for cell in row[first:]] for row in rows] == values.tolist()
        assert [row[:first] for row in rows] == [[str(one)][:first] for one in classes or (0, 1)]
        with np.load(io.BytesIO(found.to_npz())) as file:
            assert {name: file[name].tolist() for name in file} == arrays
