"""The weights of the best evaluated epoch are kept, in resumed runs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.in_process import run_ranks
from hybridnn.runs.inference import evaluate_run
from hybridnn.runs.trained_run import open_run
from reference.command_line import Run
from reference.trained_runs import train

BEST = "best-weights.npz"
OSCILLATING = ("train", "--data", "digits", "--hidden", "12", "--lr", "0.4", "--set", "training.dtype=float64", "-q")
"""A learning rate so high that the accuracy rises and falls."""


def epochs_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def best_of(run: Path) -> dict[str, Any]:
    """The first of the epochs with the highest accuracy."""
    epochs = [epoch for epoch in epochs_of(run) if epoch["test_accuracy"] is not None]
    highest = max(epoch["test_accuracy"] for epoch in epochs)
    return next(epoch for epoch in epochs if epoch["test_accuracy"] == highest)


def epoch_of_file(run: Path) -> tuple[int, int, float]:
    with np.load(run / BEST) as file:
        return int(file["epoch"]), int(file["step"]), float(file["metric"])


def assert_reproduced(run: Path, grid: ProcessGrid, tolerance: float = 0.0) -> None:
    best = best_of(run)
    assert epoch_of_file(run) == (best["epoch"], best["step"], best["test_accuracy"])
    found = open_run(run, None, grid.world, best=True)
    assert (found.source.path, found.source.step, found.source.damaged) == (run / BEST, best["step"], ())
    metrics = evaluate_run(found, grid).metrics
    assert metrics.accuracy == best["test_accuracy"]
    assert metrics.loss == pytest.approx(best["test_loss"], rel=tolerance, abs=0)


def test_best_weights_reproduce_the_best_metric_and_change_nothing(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "9", "--out", "run")[0] == 0
    run = Path("run")
    assert best_of(run)["epoch"] < 9
    assert_reproduced(run, ProcessGrid())
    assert run_hybridnn(*OSCILLATING, "--epochs", "9", "--out", "plain", "--set", "training.keep_best=false")[0] == 0
    assert not Path("plain", BEST).exists()
    with np.load(run / "weights.npz") as found, np.load("plain/weights.npz") as expected:
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_only_evaluated_epochs_count(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "7", "--out", "run", "--set", "training.evaluate_every=3")[0] == 0
    assert epoch_of_file(Path("run"))[0] in (3, 6, 7)
    assert_reproduced(Path("run"), ProcessGrid())


def test_regression_keeps_the_highest_r2(tmp_path: Path) -> None:
    data = {"name": "synthetic", "synthetic": {"samples": 100, "test_samples": 30}}
    sections = {"model": {"hidden": [8]}, "optimizer": {"lr": 0.05}, "training": {"epochs": 8, "batch_size": 10}}
    train(tmp_path / "run", data=data, **sections)
    epochs = epochs_of(tmp_path / "run")
    best = max(epochs, key=lambda epoch: epoch["test_r2"])
    assert epoch_of_file(tmp_path / "run") == (best["epoch"], best["step"], best["test_r2"])


def test_evaluate_predict_and_export_use_the_best_weights(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "9", "--out", "run")[0] == 0
    step = best_of(Path("run"))["step"]
    code, text, err = run_hybridnn("evaluate", "run", "--best", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(text)["weights"] == {"path": f"run/{BEST}", "step": step, "damaged": []}
    assert json.loads(text)["accuracy"] == best_of(Path("run"))["test_accuracy"]
    assert run_hybridnn("export", "run", "w.npz", "--best") == (
        0,
        f"w.npz: the weights of run/{BEST}, step {step}\n",
        "",
    )
    with np.load("w.npz") as exported, np.load(Path("run", BEST)) as kept:
        np.testing.assert_array_equal(exported["layers.1.weight"], kept["layers.1.weight"])
        assert "epoch" not in exported.files
    np.savez("x.npz", np.zeros((3, 64)))
    code, text, _ = run_hybridnn("predict", "run", "x.npz", "--best")
    assert (code, text) == (0, f"predictions.csv: 3 predictions with the weights of run/{BEST}, step {step}\n")


def test_wrong_use_is_an_error_of_one_line(run_hybridnn: Run) -> None:
    off = ("--set", "training.keep_best=false", "--epochs", "1")
    assert run_hybridnn(*OSCILLATING, *off, "--out", "run")[0] == 0
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"Error: run: no {BEST}, which a run with training.keep_best writes")
    code, _, err = run_hybridnn("evaluate", "run", "--best", "--checkpoint", "step-00000015")
    assert (code, err) == (2, "Error: --best = True: does not go with --checkpoint\n")
    Path("run", BEST).write_bytes(b"PK nothing")
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert (code, err) == (2, f"Error: run/{BEST}: not an .npz file (numpy.savez writes them)\n")


def test_a_new_run_removes_the_best_weights_of_a_failed_one(run_hybridnn: Run) -> None:
    diverging = (*OSCILLATING[:5], "--epochs", "3", "--out", "run", "-q", "--set", "optimizer.name=sgd")
    assert run_hybridnn(*diverging, "--lr", "1e9")[0] == 1
    Path("run", BEST).write_bytes(b"of the run that failed")
    assert run_hybridnn(*diverging, "--lr", "0.01", "--set", "training.keep_best=false")[0] == 0
    assert not Path("run", BEST).exists()


def test_a_resumed_run_compares_with_earlier_epochs(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "9", "--out", "whole")[0] == 0
    best = best_of(Path("whole"))["epoch"]
    for stop in (best - 1, best + 1):
        name = f"run-{stop}"
        assert run_hybridnn(*OSCILLATING, "--epochs", str(stop), "--out", name)[0] == 0
        written = Path(name, BEST).stat().st_mtime_ns
        left_over = Path(name, f".{BEST}.partial")
        left_over.write_bytes(b"by a process that was killed")
        assert run_hybridnn("train", "--resume", name, "--epochs", "9", "-q")[0] == 0
        assert (Path(name, BEST).stat().st_mtime_ns == written) == (stop > best)
        assert not left_over.exists()
        assert epoch_of_file(Path(name)) == epoch_of_file(Path("whole"))
        assert_reproduced(Path(name), ProcessGrid())


def test_weights_of_an_epoch_that_the_history_does_not_have_are_replaced(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "3", "--out", "run")[0] == 0
    run = Path("run")
    with np.load(run / BEST) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(run / BEST, **{**arrays, "epoch": np.array(99), "metric": np.array(2.0)})
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert (code, err) == (0, f"Warning: run/{BEST}: of epoch 99, which the history of the run does not have\n")
    assert run_hybridnn("train", "--resume", "run", "--epochs", "4", "-q")[0] == 0
    assert epoch_of_file(run)[0] == 4


def test_a_run_that_is_resumed_on_another_grid(run_hybridnn: Run) -> None:
    two, run = ("--in-process", "2"), Path("run")
    assert run_hybridnn(*OSCILLATING, *two, "--batch", "2", "--epochs", "4", "--out", "run")[0] == 0
    first = epoch_of_file(run)
    run_ranks(2, lambda comm: assert_reproduced(run, ProcessGrid(comm)))
    pipeline = ("--pipeline", "2", "--batch", "1", "--method", "gpipe")
    assert run_hybridnn("train", "--resume", "run", "-q", *two, *pipeline, "--epochs", "9")[0] == 0
    assert epoch_of_file(run) >= first
    run_ranks(2, lambda comm: assert_reproduced(run, ProcessGrid(comm), 1e-12))


def test_weights_of_an_epoch_that_the_run_no_longer_has_are_removed(run_hybridnn: Run) -> None:
    """As after a crash of a run that is then resumed from an older checkpoint."""
    assert run_hybridnn(*OSCILLATING, "--epochs", "3", "--out", "run")[0] == 0
    run = Path("run")
    with np.load(run / BEST) as file:
        arrays = dict(file)
    np.savez(run / BEST, **arrays | {"epoch": 72, "metric": 0.999})
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:-1]))
    assert run_hybridnn("train", "--resume", "run", "-q")[0] == 0
    assert not (run / BEST).exists()
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert (code, err.count("\n")) == (2, 1)
    assert BEST in err


def test_a_better_epoch_whose_weights_are_lost_is_named(run_hybridnn: Run) -> None:
    assert run_hybridnn(*OSCILLATING, "--epochs", "3", "--out", "run")[0] == 0
    best = best_of(Path("run"))
    with np.load(Path("run") / BEST) as file:
        arrays = dict(file)
    np.savez(Path("run") / BEST, **arrays | {"epoch": 1, "metric": best["test_accuracy"] / 2})
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert code == 0
    assert f"epoch {best['epoch']} with {best['test_accuracy']:.4f} was better; its weights are not kept" in err
