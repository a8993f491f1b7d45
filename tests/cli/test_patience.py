"""The weights of the best epoch are kept, and early stopping ends with them: every layout, and resumed runs too."""

import json
import shutil
import signal
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.data import load_dataset, split
from hybridnn.in_process import run_ranks
from hybridnn.runs.inference import evaluate_run
from hybridnn.runs.trained_run import open_run
from reference import trained_runs
from reference.command_line import Run, assert_same_weights, error_line, output_of, records_of

SETTINGS = ("training.dtype=float64", "optimizer.lr=0.03", "data.validation_fraction=0.25")
OPTIONS = (*(part for setting in SETTINGS for part in ("--set", setting)), "--hidden", "16,16", "--batch-size", "64")
STOPPING = ("--set", "training.patience=3")


def train(run: Run, *arguments: str, out: str = "run") -> str:
    return output_of(run("train", *OPTIONS, "--epochs", "60", *STOPPING, *arguments, "-q", "--out", out))


def accuracies(folder: Path | str) -> list[float]:
    return [record["validation_accuracy"] for record in records_of(folder, "epoch")]


def stopped(found: list[float], patience: int) -> tuple[int, int]:
    """Last epoch and best epoch by the definition: so many epochs in a row without a better value than all before."""
    best, best_epoch = -inf, 0
    for epoch, value in enumerate(found, 1):
        if value > best:
            best, best_epoch = value, epoch
        elif epoch - best_epoch == patience:
            return epoch, best_epoch
    return len(found), best_epoch


@pytest.fixture
def complete(trained_once: Callable[..., Path]) -> list[float]:
    """Validation accuracies of a run of all epochs."""
    return accuracies(trained_once(*OPTIONS, "--epochs", "60"))


@pytest.fixture
def one(trained_once: Callable[..., Path]) -> Path:
    """A run that stopped on one rank."""
    return trained_once(*OPTIONS, "--epochs", "60", *STOPPING)


def test_stops_by_the_definition_with_the_weights_of_the_best_epoch(run_hybridnn, complete, trained_once) -> None:
    last, best = stopped(complete, 3)
    assert 3 < last < 60
    text = train(run_hybridnn)
    assert accuracies("run") == complete[:last]
    assert_same_weights("run", trained_once(*OPTIONS, "--epochs", str(best)))
    end = records_of("run")[-1]
    assert (end["weights_epoch"], end["metric_name"]) == (best, "test accuracy")
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json")[1])
    assert (found["part"], found["accuracy"]) == ("test", end["metric"])
    assert found["weights"]["step"] == records_of("run", "epoch")[best - 1]["step"]
    assert f"{end['metric']:.4f} with the weights of epoch {best} of {last}" in text
    assert f"validation accuracy  best {max(complete[:last]):.4f} in epoch {best}" in text


def test_the_loss_can_be_monitored(run_hybridnn: Run, trained_once: Callable[..., Path]) -> None:
    complete = [-record["validation_loss"] for record in records_of(trained_once(*OPTIONS, "--epochs", "60"), "epoch")]
    last, best = stopped(complete, 3)
    text = train(run_hybridnn, "--set", "training.monitor=validation_loss")
    losses = [-record["validation_loss"] for record in records_of("run", "epoch")]
    assert losses == complete[:last]
    assert records_of("run")[-1]["weights_epoch"] == best
    assert f"validation_loss  best {-max(losses):.4f} in epoch {best}\n" in text
    found = json.loads(run_hybridnn("evaluate", "run", "--best", "--part", "validation", "--format", "json")[1])
    assert found["loss"] == pytest.approx(-max(losses), rel=1e-6)


def test_the_ranking_of_two_classes_can_be_monitored(run_hybridnn: Run) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    np.savez("two.npz", x_train=x, y_train=(x[:, 0] + rng.normal(size=200) > 1).astype(int))
    options = ("--file", "two.npz", *OPTIONS, *STOPPING, "--epochs", "40", "-q")
    for name in ("roc_auc", "average_precision"):
        monitor = f"training.monitor=validation_{name}"
        text = output_of(run_hybridnn("train", *options, "--set", monitor, "--out", name))
        values = [record[f"validation_{name}"] for record in records_of(name, "epoch")]
        last, best = stopped(values, 3)
        assert (len(records_of(name, "epoch")), records_of(name)[-1]["weights_epoch"]) == (last, best)
        assert f"validation_{name}  best {max(values):.4f} in epoch {best}\n" in text
    code, _, err = run_hybridnn(
        "train", *OPTIONS, *STOPPING, "--set", monitor, "--epochs", "2", "-q", "--out", "digits"
    )
    problem = "monitor = 'validation_average_precision': the training has no such values"
    assert (code, problem in err.splitlines()[-1]) == (2, True)


def test_the_parts_share_no_sample_and_are_evaluated_apart(run_hybridnn: Run, one: Path) -> None:
    header = records_of(one)[0]
    data = load_dataset("digits").train
    rest, test = split(data, 0.2, 0)
    _, validation = split(rest, 0.25, 0, "validation")
    parts = [set(part.chosen.tolist()) for part in (test,)] + [set(rest.chosen[validation.chosen].tolist())]
    assert not parts[0] & parts[1]
    sizes = [header[f"{name}_samples"] for name in ("test", "validation", "train")]
    assert sizes == [len(parts[0]), len(parts[1]), data.samples - len(parts[0]) - len(parts[1])]
    best = records_of(one)[-1]["weights_epoch"]
    for name, samples in zip(("test", "validation", "train"), sizes, strict=True):
        found = json.loads(run_hybridnn("evaluate", str(one), "--part", name, "--format", "json")[1])
        assert (found["part"], found["samples"]) == (name, samples)
        if name == "validation":
            assert found["accuracy"] == pytest.approx(accuracies(one)[best - 1], abs=1e-12)


def test_other_layouts_stop_after_the_same_epoch(run_hybridnn: Run, one: Path) -> None:
    train(run_hybridnn, "--in-process", "4", "--pipeline", "2", "--model", "2", "--method", "1f1b")
    assert len(accuracies("run")) == len(accuracies(one))
    assert_same_weights("run", one, 1e-9)


def test_a_resumed_run_stops_after_the_same_epoch(run_hybridnn, complete, one, signal_at) -> None:
    last, best = stopped(complete, 3)
    steps = records_of(one, "epoch")[0]["step"]
    signal_at((best + 1) * steps + 1, signal.SIGUSR1)  # while epochs without an improvement are counted
    options = ("--epochs", "60", *STOPPING, "--set", "output.log_every=1", "-q", "--out", "run")
    assert run_hybridnn("train", *OPTIONS, *options)[0] == 75
    assert run_hybridnn("train", "--resume", "run", "-q")[::2] == (0, "")
    assert accuracies("run") == complete[:last]
    assert_same_weights("run", one)
    # Nothing is left to do, but more patience trains on.
    nothing = "run: the run has ended, nothing is left to do\n"
    assert run_hybridnn("train", "--resume", "run", "-q") == (0, nothing, "")
    assert run_hybridnn("train", "--resume", "run", "--set", "training.patience=20", "-q")[::2] == (0, "")
    assert len(accuracies("run")) == stopped(complete, 20)[0] > last


@pytest.mark.parametrize("part", ["validation", "test"])
def test_r2_of_one_sample_steers_nothing(run_hybridnn: Run, part: str) -> None:
    Path("four.csv").write_text("x,y\n1,2.5\n2,3.5\n3,4.5\n5,5.5\n")
    validated = ("--set", "data.validation_fraction=0.25", "--set", "training.patience=1") if part != "test" else ()
    train = ("train", "--file", "four.csv", "--targets", "y", "--hidden", "4", "--epochs", "5", "--out", "run")
    code, _, err = run_hybridnn(*train, *validated)
    assert (code, [record["validation_r2"] for record in records_of("run", "epoch")]) == (0, [None] * 5)
    assert err.splitlines()[-1].startswith(f"Warning: four.csv: the {part} data are a single sample, of which there is")
    assert not Path("run/best-weights.npz").exists()
    for command in (("report", "run", "run"), ("evaluate", "run"), ("report", "run")):
        assert "accuracy" not in run_hybridnn(*command)[1]


def test_a_regression_and_a_run_without_test_samples(run_hybridnn: Run) -> None:
    synthetic = ("--data", "synthetic", "--set", "data.rows=256")
    text = train(run_hybridnn, *synthetic)
    end: dict[str, Any] = records_of("run")[-1]
    assert end["metric_name"] == "test R²"
    assert "validation R²" in text
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x_train=rng.normal(size=(90, 3)), y_train=rng.integers(0, 2, 90))
    train(run_hybridnn, "--file", "mine.npz", "--set", "data.test_fraction=0", out="all")
    end = records_of("all")[-1]
    assert (end["metric_name"], end["metric"]) == ("validation accuracy", max(accuracies("all")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.patience=3"], "training.patience = 3: needs data.validation_fraction above 0"),
        (["training.patience=0"], "training.patience = 0"),
        (
            ["training.monitor=validation_loss"],
            "training.monitor = 'validation_loss': needs data.validation_fraction above 0",
        ),
        (["data.validation_fraction=1.0"], "data.validation_fraction = 1.0"),
    ],
)
def test_settings_that_do_not_fit(run_hybridnn: Run, settings: list[str], message: str) -> None:
    assert message in error_line(run_hybridnn("train", *(item for text in settings for item in ("--set", text))))
    assert not Path("runs").exists()


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


def test_best_weights_reproduce_the_best_metric_and_change_nothing(run_hybridnn, trained) -> None:
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
    trained_runs.train(tmp_path / "run", data=data, **sections)
    best = best_of(tmp_path / "run", "validation_r2")
    assert epoch_of_file(tmp_path / "run") == (best["epoch"], best["step"], best["validation_r2"])


def test_evaluate_predict_and_export_use_the_best_weights(run_hybridnn: Run, trained: Callable[..., Path]) -> None:
    best = best_of(trained(9))
    found = json.loads(output_of(run_hybridnn("evaluate", "run", "--best", "--part", "validation", "--format", "json")))
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
def test_a_resumed_run_compares_with_earlier_epochs(run_hybridnn, trained, after) -> None:
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


def test_weights_of_an_epoch_that_the_run_no_longer_has_are_removed(run_hybridnn, trained) -> None:
    """As after a crash of a run that is then resumed from an older checkpoint."""
    run = trained(3)
    change_best(run, epoch=72, metric=0.999)
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:-1]))
    assert run_hybridnn("train", "--resume", "run", "-q")[0] == 0
    assert not (run / BEST).exists()
    assert BEST in error_line(run_hybridnn("evaluate", "run", "--best"))
