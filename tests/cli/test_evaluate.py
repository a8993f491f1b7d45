"""`hybridnn evaluate`: the table, the JSON with the same figures, any number of ranks, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference.command_line import Run, error_line
from reference.trained_runs import regression_file, train, weights_of, write_checkpoint

DIGITS = {"model": {"hidden": [12]}, "training": {"epochs": 2, "dtype": "float64"}}
STEPS = 30


def test_text_names_weights_data_and_figures(run_hybridnn: Run) -> None:
    last = train(Path("run"), **DIGITS)
    code, text, err = run_hybridnn("evaluate", "run")
    assert (code, err) == (0, "")
    words = [line.split(maxsplit=1) for line in text.splitlines()]
    shown = {name: value.strip() for name, value in words}
    assert shown == {
        "weights": f"run/weights.npz, step {STEPS}",
        "data": "digits, the test part",
        "samples": "359",
        "loss": f"{last.test_loss:.6g}",
        "accuracy": f"{last.test_accuracy:.6g}",
    }


def test_json_has_every_digit(run_hybridnn: Run) -> None:
    last = train(Path("run"), **DIGITS)
    code, text, err = run_hybridnn("evaluate", "run", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(text) == {
        "run": "run",
        "weights": {"path": "run/weights.npz", "step": STEPS, "damaged": []},
        "data": "digits",
        "part": "test",
        "loss": last.test_loss,
        "accuracy": last.test_accuracy,
        "r2": None,
        "samples": 359,
    }


def test_file_part_targets_and_checkpoint_are_taken(run_hybridnn: Run, tmp_path: Path) -> None:
    table = "\n".join(f"{number},{number % 5},{number % 3 + 0.5}" for number in range(20))
    (tmp_path / "mine.csv").write_text(f"a,b,c\n{table}\n")
    (tmp_path / "other.csv").write_text(f"a,b,z\n{table}\n")
    data = {"file": "mine.csv", "targets": ["c"]}
    train(Path("run"), data=data, model={"hidden": [4]}, training={"epochs": 2, "batch_size": 16})
    write_checkpoint(tmp_path / "run", 1, weights_of(tmp_path / "run"))
    arguments = ["--data", "other.csv", "--targets", "z", "--checkpoint", "step-00000001", "--format", "json"]
    code, text, err = run_hybridnn("evaluate", "run", *arguments)
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert (found["data"], found["part"], found["samples"], found["accuracy"]) == ("other.csv", "all", 20, None)
    assert found["weights"] == {"path": "run/checkpoints/step-00000001", "step": 1, "damaged": []}
    assert "R²" in run_hybridnn("evaluate", "run", "--part", "train")[1]


def test_damaged_checkpoint_is_named_as_a_warning(run_hybridnn: Run, tmp_path: Path) -> None:
    train(Path("run"), **DIGITS)
    for step in (4, 6):
        write_checkpoint(tmp_path / "run", step, weights_of(tmp_path / "run"))
    (tmp_path / "run" / "weights.npz").unlink()
    (tmp_path / "run" / "checkpoints" / "step-00000006" / "layers.0.bias.npy").unlink()
    code, text, err = run_hybridnn("evaluate", "run")
    assert code == 0
    assert "run/checkpoints/step-00000004, step 4" in text
    assert err == "Warning: run/checkpoints/step-00000006/layers.0.bias.npy: the file is missing\n"


def test_any_number_of_ranks(run_hybridnn: Run) -> None:
    last = train(Path("run"), **DIGITS)
    code, text, err = run_hybridnn("evaluate", "run", "--in-process", "3", "--format", "json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert found["loss"] == pytest.approx(last.test_loss, rel=1e-12)
    assert (found["accuracy"], found["samples"]) == (last.test_accuracy, 359)
    code, text, err = run_hybridnn("evaluate", "run", "--in-process", "2", "--pipeline", "2", "--part", "train")
    assert (code, err) == (0, "")
    assert "digits, the train part" in text
    assert text.count("samples") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "Error: absent is not a run folder: it has no config.toml"),
        (["run", "--data", "digit"], "digits"),
        (["run", "--data", "absent.csv"], "Error: data.file = 'absent.csv': no such file"),
        (["run", "--data", "x.csv"], "Error: data.targets = []: a .csv file needs"),
        (["run", "--data", "synthetic"], "Error: synthetic is for regression; run was trained for classification"),
        (["run", "--data", "other.npz"], "Error: other.npz: y_train is float64: classification needs integer labels"),
        (["run", "--checkpoint", "step-00000001"], "--checkpoint = 'step-00000001': not in run/checkpoints"),
        (["run", "--batch", "2"], "Error: the process grid batch 2 x model 1 does not fit 1 rank"),
        (["run", "--part", "some"], "--part"),
        (["run", "--pipeline", "0"], "--pipeline"),
    ],
)
def test_wrong_input_is_one_line(run_hybridnn: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    train(Path("run"), **DIGITS)
    regression_file(tmp_path / "other.npz")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert message in error_line(run_hybridnn("evaluate", *arguments))
