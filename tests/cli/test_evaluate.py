"""`hybridnn evaluate`: the table, the JSON with the same figures, any number of ranks, and wrong input."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from hybridnn.datasets import load_dataset, load_file, split
from hybridnn.runs.quality import ClassReport
from reference.command_line import Run, error_line
from reference.trained_runs import regression_file, train, weights_of, write_checkpoint

DIGITS = {"model": {"hidden": [12]}, "training": {"epochs": 2, "dtype": "float64"}}
STEPS = 30


def test_text_names_weights_data_and_figures(run_hybridnn: Run) -> None:
    last = train(Path("run"), **DIGITS)
    code, text, err = run_hybridnn("evaluate", "run")
    assert (code, err) == (0, "")
    words = [line.split(maxsplit=1) for line in text.splitlines()[:5]]
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
    found = json.loads(text)
    by_class = {name: found.pop(name) for name in ("classes", "macro_mean", "weighted_mean", "confusion")}
    assert sum(map(sum, by_class["confusion"])) == sum(item["samples"] for item in by_class["classes"]) == 359
    assert found == {
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
    assert text.count("loss") == 1


def digits_predicted(run_hybridnn: Run) -> tuple[Any, Any]:
    """True and predicted classes of the test part, from the file of `hybridnn predict`."""
    data = load_dataset("digits")
    _, test = split(data.train, 0.2, seed=0)
    x, y = np.empty((test.samples, 64)), np.empty(test.samples, np.int64)
    test.take(np.arange(test.samples), x, y)
    np.savez("x.npz", x)
    assert run_hybridnn("predict", "run", "x.npz", "--out", "found.npz", "--force")[0] == 0
    with np.load("found.npz") as found:
        return y, found["classes"]


@pytest.mark.parametrize("ranks", [(), ("--in-process", "3"), ("--in-process", "2", "--pipeline", "2")])
def test_the_report_by_class_is_that_of_scikit_learn(run_hybridnn: Run, ranks: tuple[str, ...]) -> None:
    train(Path("run"), **DIGITS)
    true, predicted = digits_predicted(run_hybridnn)
    expected: Any = metrics.classification_report(true, predicted, output_dict=True, zero_division=0)
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json", *ranks)[1])
    assert found["confusion"] == metrics.confusion_matrix(true, predicted, labels=range(10)).tolist()
    for label, item in enumerate(found["classes"]):
        names = {"precision": "precision", "recall": "recall", "f1": "f1-score", "samples": "support"}
        assert item.pop("name") == str(label)
        assert item == pytest.approx({own: expected[str(label)][name] for own, name in names.items()})
    for own, name in (("macro_mean", "macro avg"), ("weighted_mean", "weighted avg")):
        values = [found[own][key] for key in ("precision", "recall", "f1")]
        assert values == pytest.approx([expected[name][key] for key in ("precision", "recall", "f1-score")])
    text = run_hybridnn("evaluate", "run", *ranks)[1]
    assert f"macro mean      {expected['macro avg']['precision']:.4f}".split() == next(
        line.split()[:3] for line in text.splitlines() if "macro mean" in line
    )


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
    code, text, err = run_hybridnn("evaluate", "run", "--data", "mine.csv", "--part", "train", "--format", "json")
    assert (code, err) == (0, "")
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
    assert run_hybridnn("evaluate", "run", "--picture", "errors.svg")[0] == 0
    texts = {item.text for item in ElementTree.parse("errors.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"true price", "predicted price", "true noise", "predicted - true"} <= texts


@pytest.mark.parametrize(("name", "beginning"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_confusion_matrix_is_drawn(run_hybridnn: Run, name: str, beginning: bytes) -> None:
    train(Path("run"), **DIGITS)
    assert run_hybridnn("evaluate", "run", "--picture", name)[::2] == (0, "")
    assert Path(name).read_bytes().startswith(beginning)
    found = json.loads(run_hybridnn("evaluate", "run", "--format", "json")[1])
    axes = ClassReport(tuple("0123456789"), np.array(found["confusion"])).figure().axes[0]
    counts = {(item.get_position()[1], item.get_position()[0]): item.get_text() for item in axes.texts}
    expected = {place: f"{count:,}" for place, count in np.ndenumerate(np.array(found["confusion"])) if count}
    assert counts == expected


def test_classes_that_never_occur_have_scores_of_zero() -> None:
    report = ClassReport.of("abc", np.array([0, 0, 1]), np.array([0, 1, 1]))
    assert report.precision.tolist() == [1.0, 0.5, 0.0]
    assert report.recall.tolist() == [0.5, 1.0, 0.0]
    assert report.f1.tolist() == pytest.approx([2 / 3, 2 / 3, 0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--picture", "a.gif"], "picture = 'a.gif': a name that ends with .png, .svg, .pdf"),
        (["run", "--picture", "none/a.png"], "picture = 'none/a.png': cannot be written"),
        (["absent"], "Error: absent is not a run folder: it has no config.toml"),
        (["run", "--data", "digit"], "digits"),
        (["run", "--data", "absent.csv"], "Error: data.file = 'absent.csv': no such file"),
        (["run", "--data", "x.csv"], "Error: data.targets = []: a table needs"),
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
