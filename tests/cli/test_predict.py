"""`hybridnn predict`: a file of predictions, by any number of ranks, and wrong input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridnn.datasets import load_dataset
from reference import network as net
from reference.command_line import Run, error_line
from reference.trained_runs import train, weights_of

SAMPLES = 25


@pytest.fixture
def run(run_hybridnn: Run, tmp_path: Path) -> Run:
    """Run ``hybridnn predict`` in a folder with a run on digits and some samples."""
    train(Path("run"), model={"hidden": [12]}, training={"epochs": 2, "dtype": "float64"})
    x = np.empty((SAMPLES, 64))
    load_dataset("digits").train.take(np.arange(SAMPLES), x, None)
    np.savez(tmp_path / "x.npz", x)
    return lambda *arguments: run_hybridnn("predict", *arguments)


def expected_classes(folder: Path) -> list[int]:
    with np.load(folder / "run" / "standardization.npz") as file, np.load(folder / "x.npz") as samples:
        x = (samples["arr_0"] - file["x_mean"]) / file["x_scale"]
    outputs, _ = net.forward(net.Network((64, 12, 10)), weights_of(folder / "run"), x)
    return [int(np.argmax(row)) for row in outputs]


def test_csv_and_npz_say_the_same(run: Run, tmp_path: Path) -> None:
    weights = "predictions with the weights of run/weights.npz, step 30\n"
    assert run("run", "x.npz") == (0, f"predictions.csv: {SAMPLES} {weights}", "")
    assert run("run", "x.npz", "--out", "p.npz") == (0, f"p.npz: {SAMPLES} {weights}", "")
    table = np.loadtxt(tmp_path / "predictions.csv", delimiter=",", skiprows=1)
    assert table[:, 0].tolist() == expected_classes(tmp_path)
    with np.load(tmp_path / "p.npz") as file:
        assert file["classes"].tolist() == table[:, 0].tolist()
        assert file["probabilities"].tolist() == table[:, 1:].tolist()


def test_any_number_of_ranks_writes_one_file(run: Run, tmp_path: Path) -> None:
    code, text, err = run("run", "x.npz", "--in-process", "3")
    assert (code, text.count("predictions with"), err) == (0, 1, "")
    table = np.loadtxt(tmp_path / "predictions.csv", delimiter=",", skiprows=1)
    assert table[:, 0].tolist() == expected_classes(tmp_path)
    before = (tmp_path / "predictions.csv").read_bytes()
    code, text, err = run("run", "x.npz", "--in-process", "3")
    assert (code, text) == (2, "")
    assert err == "Error: --out = 'predictions.csv': is there already; --force replaces it\n"
    assert (tmp_path / "predictions.csv").read_bytes() == before


def test_file_that_is_there_is_replaced_only_with_force(run: Run, tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("precious")
    assert run("run", "x.npz")[0] == 2
    assert run("run", "absent.npz", "--force")[0] == 2
    assert (tmp_path / "predictions.csv").read_text() == "precious"
    assert run("run", "x.npz", "--force")[0] == 0
    assert (tmp_path / "predictions.csv").read_text().startswith("class,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "x.npz"], "Error: absent is not a run folder: it has no config.toml"),
        (["run", "absent.npz"], "Error: absent.npz: no such file"),
        (["run", "run/config.toml"], "'run/config.toml': the name of the file must end in .npz, .csv or .parquet"),
        (["run", "wide.csv"], "Error: wide.csv: samples of 3 features; the network takes 64"),
        (["run", "x.npz", "--out", "p.txt"], "Error: --out = 'p.txt': the name of the file must end in .csv or .npz"),
        (["run", "x.npz", "--out", "no/p.csv"], "Error: --out = 'no/p.csv': there is no folder no"),
        (["run", "x.npz", "--model", "2"], "model 2"),
    ],
)
def test_wrong_input_is_one_line(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "wide.csv").write_text("a,b,c\n1,2,3\n")
    assert message in error_line(run(*arguments))
    assert not list(tmp_path.glob("p*"))
