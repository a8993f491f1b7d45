"""`hybridnn evaluate`, `predict` and `export`: figures and files, on any number of ranks, and wrong input."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from hybridnn.data import load_dataset, load_file, split
from hybridnn.runs.inference import ClassReport
from reference.command_line import Run, error_line, output_of, records_of
from reference.trained_runs import regression_file, train, weights_of, write_checkpoint

STEPS = 30


@pytest.fixture
def run(run_hybridnn: Run, trained_once: Callable[..., Path]) -> Run:
    """The command line in a folder with a run on digits without checkpoints, and its test samples."""
    shutil.copytree(trained_once("--hidden", "12", "--epochs", "2", "--set", "training.dtype=float64"), "run")
    shutil.rmtree("run/checkpoints")
    _, test = split(load_dataset("digits").train, 0.2, seed=0)
    x, y = np.empty((test.samples, 64)), np.empty(test.samples, np.int64)
    test.take(np.arange(test.samples), x, y)
    np.savez("x.npz", x)
    np.save("y.npy", y)
    return run_hybridnn


@pytest.fixture
def evaluate(run: Run) -> Run:
    """Evaluate that run."""
    return partial(run, "evaluate", "run")


def test_text_and_json_have_the_figures_of_the_last_epoch(evaluate: Run) -> None:
    last = records_of("run", "epoch")[-1]
    text = output_of(evaluate())
    assert [[words[0], words[1].strip()] for line in text.splitlines()[:5] if (words := line.split(maxsplit=1))] == [
        ["weights", f"run/weights.npz, step {STEPS}"],
        ["data", "digits, the test part"],
        ["samples", "359"],
        ["loss", f"{last['validation_loss']:.4f}"],
        ["accuracy", f"{last['validation_accuracy']:.4f}"],
    ]
    found = json.loads(evaluate("--format", "json")[1])
    by_class = {name: found.pop(name) for name in ("classes", "macro_mean", "weighted_mean", "confusion")}
    assert sum(map(sum, by_class["confusion"])) == sum(item["samples"] for item in by_class["classes"]) == 359
    assert found == {
        "run": "run",
        "weights": {"path": "run/weights.npz", "step": STEPS, "damaged": []},
        "data": "digits",
        "part": "test",
        "loss": last["validation_loss"],
        "accuracy": last["validation_accuracy"],
        "r2": None,
        "samples": 359,
        "roc_auc": None,
        "average_precision": None,
    }
    found = json.loads(evaluate("--in-process", "3", "--format", "json")[1])
    assert found["loss"] == pytest.approx(last["validation_loss"], rel=1e-12)
    assert (found["accuracy"], found["samples"]) == (last["validation_accuracy"], 359)
    code, text, err = evaluate("--in-process", "2", "--model", "2", "--part", "train")
    assert (code, err, text.count("loss")) == (0, "", 1)
    assert "digits, the train part" in text


def test_file_part_targets_and_checkpoint_are_taken(run_hybridnn: Run, tmp_path: Path) -> None:
    table = "\n".join(f"{number % 7},{number % 5},{number % 3 + 0.5}" for number in range(20))
    (tmp_path / "mine.csv").write_text(f"a,b,c\n{table}\n")
    (tmp_path / "other.csv").write_text(f"a,b,z\n{table}\n")
    data = {"file": "mine.csv", "targets": ["c"]}
    train(Path("run"), data=data, model={"hidden": [4]}, training={"epochs": 2, "batch_size": 16})
    write_checkpoint(tmp_path / "run", 1, weights_of(tmp_path / "run"))
    arguments = ["--data", "other.csv", "--targets", "z", "--checkpoint", "step-00000001", "--format", "json"]
    found = json.loads(output_of(run_hybridnn("evaluate", "run", *arguments)))
    assert (found["data"], found["part"], found["samples"], found["accuracy"]) == ("other.csv", "all", 20, None)
    assert found["weights"] == {"path": "run/checkpoints/step-00000001", "step": 1, "damaged": []}
    assert "R²" in run_hybridnn("evaluate", "run", "--part", "train")[1]


def test_damaged_checkpoint_is_named_as_a_warning(evaluate: Run, tmp_path: Path) -> None:
    for step in (4, 6):
        write_checkpoint(tmp_path / "run", step, weights_of(tmp_path / "run"))
    Path("run/weights.npz").unlink()
    Path("run/checkpoints/step-00000006/layers.0.bias.npy").unlink()
    code, text, err = evaluate()
    assert (code, "run/checkpoints/step-00000004, step 4" in text) == (0, True)
    assert err.startswith("Warning: run/checkpoints/step-00000006/layers.0.bias.npy: ")


def test_the_report_by_class_is_that_of_scikit_learn(evaluate: Run, run: Run) -> None:
    assert run("predict", "run", "x.npz", "--out", "found.npz")[0] == 0
    true = np.load("y.npy")
    with np.load("found.npz") as file:
        predicted = file["classes"]
    expected: Any = metrics.classification_report(true, predicted, output_dict=True, zero_division=0)
    for ranks in ((), ("--in-process", "3"), ("--in-process", "2", "--model", "2")):
        found = json.loads(evaluate("--format", "json", *ranks)[1])
        assert found["confusion"] == metrics.confusion_matrix(true, predicted, labels=range(10)).tolist()
        for label, item in enumerate(found["classes"]):
            names = {"precision": "precision", "recall": "recall", "f1": "f1-score", "samples": "support"}
            assert item.pop("name") == str(label)
            assert item == pytest.approx({own: expected[str(label)][name] for own, name in names.items()})
        for own, name in (("macro_mean", "macro avg"), ("weighted_mean", "weighted avg")):
            values = [found[own][key] for key in ("precision", "recall", "f1")]
            assert values == pytest.approx([expected[name][key] for key in ("precision", "recall", "f1-score")])
    (mean,) = [line.split()[:3] for line in evaluate()[1].splitlines() if "macro mean" in line]
    assert mean == ["macro", "mean", f"{expected['macro avg']['precision']:.4f}"]


def test_of_two_classes_the_ranking_is_that_of_scikit_learn(run_hybridnn: Run) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((120, 3))
    bought = np.where(x[:, 0] + random.standard_normal(120) > 0.7, "yes", "no")
    rows = [f"{','.join(map(str, row))},{word}\n" for row, word in zip(x.tolist(), bought, strict=True)]
    for name in ("shop.csv", "all.csv"):
        Path(name).write_text("a,b,c,bought\n" + "".join(rows))
    train(Path("run"), data={"file": "shop.csv", "targets": ["bought"]}, model={"hidden": [4]}, training={"epochs": 3})
    assert run_hybridnn("predict", "run", "shop.csv", "--out", "found.csv")[0] == 0
    scores = np.genfromtxt("found.csv", delimiter=",", skip_header=1, usecols=-1)
    figures = metrics.roc_auc_score(bought == "yes", scores), metrics.average_precision_score(bought == "yes", scores)
    for layout in ((), ("--in-process", "2"), ("--in-process", "2", "--model", "2")):
        found = json.loads(run_hybridnn("evaluate", "run", "--data", "all.csv", "--format", "json", *layout)[1])
        assert (found["roc_auc"], found["average_precision"]) == pytest.approx(figures, rel=1e-6)
    text = run_hybridnn("evaluate", "run", "--data", "all.csv")[1]
    assert f"ROC-AUC            {figures[0]:.4f} for class yes" in text
    assert f"average precision  {figures[1]:.4f} for class yes" in text


def test_the_report_of_a_regression_is_in_the_units_of_the_targets(run_hybridnn: Run) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((80, 2))
    y = np.stack([1000 + 50 * x[:, 0], x[:, 1] + 0.3 * random.standard_normal(80)], axis=1)
    np.savetxt("mine.csv", np.hstack([x, y]), delimiter=",", header="a,b,price,noise", comments="", fmt="%.17g")
    data = {"file": "mine.csv", "targets": ["price", "noise"]}
    train(Path("run"), data=data, model={"hidden": [4]}, training={"epochs": 3, "dtype": "float64"})
    np.savez("x.npz", x)
    assert run_hybridnn("predict", "run", "x.npz", "--out", "found.npz")[0] == 0
    with np.load("found.npz") as file:
        predicted = file["predictions"]
    text = output_of(run_hybridnn("evaluate", "run", "--data", "mine.csv", "--part", "train", "--format", "json"))
    part, _ = split(load_file("mine.csv", ("price", "noise")).train, 0.2, seed=0)
    own_y = np.empty((part.samples, 2))
    part.take(np.arange(part.samples), None, own_y)
    index = [int(np.flatnonzero((y == row).all(axis=1))[0]) for row in own_y]
    found = json.loads(text)["targets"]
    assert [item["target"] for item in found] == ["price", "noise"]
    for column, item in enumerate(found):
        true, own = y[index, column], predicted[index, column]
        assert item["r2"] == pytest.approx(metrics.r2_score(true, own))
        assert item["rmse"] == pytest.approx(metrics.root_mean_squared_error(true, own))
        assert item["mae"] == pytest.approx(metrics.mean_absolute_error(true, own))
    assert "RMSE" in run_hybridnn("evaluate", "run")[1]


def test_classes_that_never_occur_have_scores_of_zero() -> None:
    report = ClassReport.of("abc", np.array([0, 0, 1]), np.array([0, 1, 1]))
    assert report.scores == pytest.approx(np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [2 / 3, 2 / 3, 0.0]]))


def test_predictions_are_the_same_in_every_format_on_ranks(run: Run) -> None:
    said = f"359 predictions with the weights of run/weights.npz, step {STEPS}\n"
    assert run("predict", "run", "x.npz", "--in-process", "3") == (0, f"predictions.csv: {said}", "")
    assert run("predict", "run", "x.npz", "--out", "p.npz") == (0, f"p.npz: {said}", "")
    table = np.loadtxt("predictions.csv", delimiter=",", skiprows=1)
    with np.load("p.npz") as file:
        assert file["classes"].tolist() == table[:, 0].tolist()
        np.testing.assert_allclose(file["probabilities"], table[:, 1:], rtol=1e-12)


def test_exported_file_holds_the_weights_and_the_standardization_or_both_folded(run, run_as_ranks, tmp_path) -> None:
    weights = weights_of(tmp_path / "run")
    before = {path.name for path in tmp_path.iterdir()}
    assert run_as_ranks("export", "run", "w.npz") == (0, f"w.npz: the weights of run/weights.npz, step {STEPS}\n", "")
    with np.load("w.npz") as file, np.load("run/standardization.npz") as shift:
        for name, array in weights.items():
            np.testing.assert_array_equal(file[name], array)
        np.testing.assert_array_equal(file["input_mean"], shift["x_mean"])
        np.testing.assert_array_equal(file["input_scale"], shift["x_scale"])
    assert {path.name for path in tmp_path.iterdir()} == before | {"w.npz"}
    write_checkpoint(tmp_path / "run", 7, {name: 2 * array for name, array in weights.items()})
    code, text, _ = run("export", "run", "f.npz", "--fold-standardization", "--checkpoint", "step-00000007")
    assert (code, text) == (0, "f.npz: the weights of run/checkpoints/step-00000007, step 7\n")
    with np.load("f.npz") as file:
        assert "input_mean" not in file
        np.testing.assert_array_equal(file["layers.1.weight"], 2 * weights["layers.1.weight"])


@pytest.mark.parametrize(
    ("command", "setting"),
    [(("predict", "run", "x.npz", "--out"), "--out"), (("export", "run"), "WEIGHTS.npz")],
    ids=["predict", "export"],
)
def test_file_that_is_there_is_replaced_only_with_force(run: Run, command: tuple[str, ...], setting: str) -> None:
    Path("w.npz").write_text("precious")
    line = error_line(run(*command, "w.npz"))
    assert line == f"Error: {setting} = 'w.npz': is there already; --force replaces it"
    assert run(command[0], "absent", *command[2:], "w.npz", "--force")[0] == 2
    assert Path("w.npz").read_text() == "precious"
    assert run(*command, "w.npz", "--force")[0] == 0
    with np.load("w.npz") as file:
        assert file.files


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate run --data digit", "digits"),
        ("evaluate run --data absent.csv", "absent.csv: cannot be read: No such file or directory"),
        ("evaluate run --data wide.csv", "data.targets = []: "),
        ("evaluate run --checkpoint step-00000001", "--checkpoint = 'step-00000001': "),
        ("evaluate run --model 2", "the process grid model 2 does not fit 1 rank"),
        ("evaluate run --part some", "--part"),
        ("predict absent x.npz", "Error: absent is not a run folder"),
        ("predict run absent.npz", "Error: absent.npz: cannot be read: No such file or directory"),
        (
            "predict run run/config.toml",
            "'run/config.toml': the name of the file must end in .npz, .csv, .tsv, .txt or .parquet",
        ),
        ("predict run x.npz --out p.txt", "Error: --out = 'p.txt': "),
        ("predict run x.npz --out no/p.csv", "Error: --out = 'no/p.csv': "),
        ("predict run x.npz --model 2", "model 2"),
        ("export absent w.npz", "Error: absent is not a run folder"),
        ("export run w.csv", "Error: WEIGHTS.npz = 'w.csv': "),
        ("export run no/w.npz", "Error: WEIGHTS.npz = 'no/w.npz': "),
        ("export run /proc/w.npz", "/proc/w.npz"),
    ],
)
def test_wrong_input_is_one_line(run: Run, command: str, message: str) -> None:
    regression_file(Path("other.npz"))
    Path("wide.csv").write_text("a,b,c\n1,2,3\n")
    assert message in error_line(run(*command.split()))
    assert {path.name for path in Path().iterdir()} == {"other.npz", "run", "wide.csv", "x.npz", "y.npy"}
