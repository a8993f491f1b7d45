"""`hybridnn export`: one file, whole or not at all, and never over another one unasked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reference.command_line import Run, error_line
from reference.trained_runs import train, weights_of, write_checkpoint


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn export`` in a folder with a run."""
    train(Path("run"), model={"hidden": [12]}, training={"epochs": 1})
    return lambda *arguments: run_hybridnn("export", *arguments)


def test_file_holds_the_weights_and_the_standardization(run: Run, tmp_path: Path) -> None:
    assert run("run", "w.npz") == (0, "w.npz: the weights of run/weights.npz, step 15\n", "")
    with np.load(tmp_path / "w.npz") as file, np.load(tmp_path / "run" / "standardization.npz") as shift:
        for name, array in weights_of(tmp_path / "run").items():
            np.testing.assert_array_equal(file[name], array)
        np.testing.assert_array_equal(file["input_mean"], shift["x_mean"])
        np.testing.assert_array_equal(file["input_scale"], shift["x_scale"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "w.npz"]


def test_folded_file_and_chosen_checkpoint(run: Run, tmp_path: Path) -> None:
    twice = {name: 2 * array for name, array in weights_of(tmp_path / "run").items()}
    write_checkpoint(tmp_path / "run", 7, twice)
    code, text, _ = run("run", "w.npz", "--fold-standardization", "--checkpoint", "step-00000007")
    assert (code, text) == (0, "w.npz: the weights of run/checkpoints/step-00000007, step 7\n")
    with np.load(tmp_path / "w.npz") as file:
        assert "input_mean" not in file
        np.testing.assert_array_equal(file["layers.1.weight"], twice["layers.1.weight"])


def test_file_that_is_there_is_replaced_only_with_force(run: Run, tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_text("precious")
    code, text, err = run("run", "w.npz")
    assert (code, text, err) == (2, "", "Error: WEIGHTS.npz = 'w.npz': is there already; --force replaces it\n")
    assert (tmp_path / "w.npz").read_text() == "precious"
    assert run("absent", "w.npz", "--force")[0] == 2
    assert (tmp_path / "w.npz").read_text() == "precious"
    assert run("run", "w.npz", "--force")[0] == 0
    with np.load(tmp_path / "w.npz") as file:
        assert "layers.0.weight" in file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "w.npz"], "Error: absent is not a run folder: it has no config.toml"),
        (["run", "w.csv"], "Error: WEIGHTS.npz = 'w.csv': the name of the file must end in .npz"),
        (["run", "no/w.npz"], "Error: WEIGHTS.npz = 'no/w.npz': there is no folder no"),
        (["run", "run"], "must end in .npz"),
        (["run", "/proc/w.npz"], "/proc/w.npz"),
    ],
)
def test_wrong_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    assert message in error_line(run(*arguments))


def test_any_number_of_ranks_writes_one_file(run: Run, run_as_ranks: Run, tmp_path: Path) -> None:
    assert run_as_ranks("export", "run", "w.npz") == (0, "w.npz: the weights of run/weights.npz, step 15\n", "")
    with np.load(tmp_path / "w.npz") as file:
        assert "layers.1.bias" in file
