"""The weights of the best evaluated epoch are kept, in resumed runs too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.in_process import run_ranks
from hybridnn.runs.inference import evaluate_run
from hybridnn.runs.trained_run import open_run
from reference.command_line import Run, error_line, records_of
from reference.trained_runs import train

BEST = "best-weights.npz"
PARTS = ("--set", "data.validation_fraction=0.25")
OSCILLATING = ("--data", "digits", "--hidden", "12", "--lr", "0.4", "--set", "training.dtype=float64", *PARTS)
"""A learning rate so high that the accuracy rises and falls."""


@pytest.fixture
def trained(trained_once: Callable[..., Path], run_hybridnn: Run) -> Callable[..., Path]:
    """Return a copy of a run of these epochs in the working folder."""

    def copy(epochs: int, name: str = "run") -> Path:
        return Path(shutil.copytree(trained_once(*OSCILLATING, "--epochs", str(epochs)), name))

    return copy


def change_best(run: Path, **arrays: Any) -> None:
    with np.load(run / BEST) as file:
        kept = dict(file)
    np.savez(run / BEST, **kept | arrays)


def best_of(run: Path, metric: str = "validation_accuracy") -> dict[str, Any]:
    """The first of the epochs with the highest accuracy."""
    return max(
        (epoch for epoch in records_of(run, "epoch") if epoch[metric] is not None), key=lambda epoch: epoch[metric]
    )


def epoch_of_file(run: Path) -> tuple[int, int, float]:
    with np.load(run / BEST) as file:
        return int(file["epoch"]), int(file["step"]), float(file["metric"])


def assert_reproduced(run: Path, grid: ProcessGrid, tolerance: float = 0.0) -> None:
    best = best_of(run)
    assert epoch_of_file(run) == (best["epoch"], best["step"], best["validation_accuracy"])
    found = open_run(run, None, grid.world, best=True)
    assert (found.source.path, found.source.step, found.source.damaged) == (run / BEST, best["step"], ())
    metrics = evaluate_run(found, grid, part="validation").metrics
    assert metrics.accuracy == best["validation_accuracy"]
    assert metrics.loss == pytest.approx(best["validation_loss"], rel=tolerance, abs=0)


def test_best_weights_reproduce_the_best_metric_and_change_nothing(
    run_hybridnn: Run, trained: Callable[..., Path]
) -> None:
    run = trained(9)
    assert best_of(run)["epoch"] < 9
    assert_reproduced(run, ProcessGrid())
    some = ("--epochs", "7", "--out", "some", "--set", "training.evaluate_every=3", "-q")
    assert run_hybridnn("train", *OSCILLATING, *some)[0] == 0
    assert epoch_of_file(Path("some"))[0] in (3, 6, 7), "only evaluated epochs count"
    assert_reproduced(Path("some"), ProcessGrid())


def test_regression_keeps_the_highest_r2(tmp_path: Path) -> None:
    data = {"name": "synthetic", "rows": 100, "synthetic": {"test_samples": 30}, "validation_fraction": 0.3}
    sections = {"model": {"hidden": [8]}, "optimizer": {"lr": 0.05}, "training": {"epochs": 8, "batch_size": 10}}
    train(tmp_path / "run", data=data, **sections)
    best = best_of(tmp_path / "run", "validation_r2")
    assert epoch_of_file(tmp_path / "run") == (best["epoch"], best["step"], best["validation_r2"])


def test_evaluate_predict_and_export_use_the_best_weights(run_hybridnn: Run, trained: Callable[..., Path]) -> None:
    best = best_of(trained(9))
    code, text, err = run_hybridnn("evaluate", "run", "--best", "--part", "validation", "--format", "json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert found["weights"] == {"path": f"run/{BEST}", "step": best["step"], "damaged": []}
    assert found["accuracy"] == best["validation_accuracy"]
    weights = f"weights of run/{BEST}, step {best['step']}\n"
    assert run_hybridnn("export", "run", "w.npz", "--best") == (0, f"w.npz: the {weights}", "")
    with np.load("w.npz") as exported, np.load(Path("run", BEST)) as kept:
        np.testing.assert_array_equal(exported["layers.1.weight"], kept["layers.1.weight"])
        assert "epoch" not in exported.files
    np.savez("x.npz", np.zeros((3, 64)))
    assert run_hybridnn("predict", "run", "x.npz", "--best")[1].endswith(weights)
    wrong = run_hybridnn("evaluate", "run", "--best", "--checkpoint", "step-00000015")
    assert error_line(wrong).startswith("Error: --best = True: ")
    Path("run", BEST).write_bytes(b"PK nothing")
    assert error_line(run_hybridnn("evaluate", "run", "--best")).startswith(f"Error: run/{BEST}: ")


def test_a_new_run_removes_the_best_weights_of_a_failed_one(run_hybridnn: Run) -> None:
    diverging = ("train", *OSCILLATING[:4], "--epochs", "3", "--out", "run", "-q", "--set", "optimizer.name=sgd")
    assert run_hybridnn(*diverging, "--lr", "1e9")[0] == 1
    Path("run", BEST).write_bytes(b"of the run that failed")
    assert run_hybridnn(*diverging, "--lr", "0.01", "--set", "data.validation_fraction=0")[0] == 0
    assert not Path("run", BEST).exists()
    message = (
        f"Error: run: no {BEST}, which a run with data.validation_fraction above 0 writes after an evaluated epoch"
    )
    assert error_line(run_hybridnn("evaluate", "run", "--best")) == message


@pytest.mark.parametrize("after", [-1, 1])
def test_a_resumed_run_compares_with_earlier_epochs(
    run_hybridnn: Run, trained: Callable[..., Path], after: int
) -> None:
    whole = trained(9, "whole")
    run = trained(best_of(whole)["epoch"] + after)
    written = (run / BEST).stat().st_mtime_ns
    left_over = run / f".{BEST}.partial"
    left_over.write_bytes(b"by a process that was killed")
    assert run_hybridnn("train", "--resume", "run", "--epochs", "9", "-q")[0] == 0
    assert ((run / BEST).stat().st_mtime_ns == written) == (after > 0)
    assert not left_over.exists()
    assert epoch_of_file(run) == epoch_of_file(whole)
    assert_reproduced(run, ProcessGrid())


def test_a_run_that_is_resumed_on_another_grid(run_hybridnn: Run) -> None:
    two, run = ("--in-process", "2", "-q"), Path("run")
    assert run_hybridnn("train", *OSCILLATING, *two, "--batch", "2", "--epochs", "4", "--out", "run")[0] == 0
    first = epoch_of_file(run)
    run_ranks(2, lambda comm: assert_reproduced(run, ProcessGrid(comm)))
    pipeline = ("--pipeline", "2", "--batch", "1", "--method", "gpipe")
    assert run_hybridnn("train", "--resume", "run", *two, *pipeline, "--epochs", "9")[0] == 0
    assert epoch_of_file(run) >= first
    run_ranks(2, lambda comm: assert_reproduced(run, ProcessGrid(comm), 1e-12))


def test_weights_that_the_history_does_not_explain_are_named(run_hybridnn: Run, trained: Callable[..., Path]) -> None:
    run = trained(3)
    best = best_of(run)
    change_best(run, epoch=1, metric=best["validation_accuracy"] / 2)
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert code == 0
    assert f"epoch {best['epoch']} with {best['validation_accuracy']:.4f} was better; its weights are not kept" in err
    change_best(run, epoch=99, metric=2.0)
    code, _, err = run_hybridnn("evaluate", "run", "--best")
    assert (code, err) == (0, f"Warning: run/{BEST}: of epoch 99, which the history of the run does not have\n")
    assert run_hybridnn("train", "--resume", "run", "--epochs", "4", "-q")[0] == 0
    assert epoch_of_file(run)[0] == 4


def test_weights_of_an_epoch_that_the_run_no_longer_has_are_removed(
    run_hybridnn: Run, trained: Callable[..., Path]
) -> None:
    """As after a crash of a run that is then resumed from an older checkpoint."""
    run = trained(3)
    change_best(run, epoch=72, metric=0.999)
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:-1]))
    assert run_hybridnn("train", "--resume", "run", "-q")[0] == 0
    assert not (run / BEST).exists()
    assert BEST in error_line(run_hybridnn("evaluate", "run", "--best"))
