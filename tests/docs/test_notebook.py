"""Notebooks: the outputs of the committed ones, and the results of those for teaching."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks
from reference.pages import ROOT, executed, outputs, printed, quiet_kernel, with_cells

NOTEBOOK = ROOT / "docs" / "use" / "ranks_in_one_process.ipynb"
SVG = "{http://www.w3.org/2000/svg}"


def texts_and_dashed_lines(notebook: dict[str, Any]) -> Iterator[tuple[list[str], int]]:
    """Of every picture, its texts and the number of its dashed lines, which are messages that never arrive."""
    for output in (output for cell in notebook["cells"] for output in cell.get("outputs", ())):
        svg = output.get("data", {}).get("image/svg+xml")
        if svg is not None:
            root = ElementTree.fromstring("".join(svg))
            dashed = sum("stroke-dasharray" in line.attrib for line in root.iter(f"{SVG}polyline"))
            yield [text.text or "" for text in root.iter(f"{SVG}text")], dashed


def one_rank(comm: Any) -> list[float]:
    trainer = Trainer(MLP([64, 32, 10]), SGD(lr=0.1), grid=ProcessGrid(comm), batch_size=300, dtype="float64")
    return [epoch.train_loss for epoch in trainer.fit(load_dataset("digits").train, epochs=5).epochs]


@pytest.mark.timeout(900)
def test_outputs_of_the_notebook_are_the_committed_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_kernel(monkeypatch, tmp_path)
    committed = NOTEBOOK.read_text(encoding="utf-8")
    text = executed(with_cells(committed, "import json\nprint(json.dumps(run.results))"))
    notebook = json.loads(text)
    losses = json.loads(printed(notebook["cells"].pop()))
    assert outputs.differing_cells(committed, json.dumps(notebook)) == []

    assert len(losses) == 4
    np.testing.assert_allclose(losses, 4 * [run_ranks(1, one_rank).results[0]], rtol=1e-10)
    pictures = list(texts_and_dashed_lines(notebook))
    assert [dashed for _, dashed in pictures[1:]] == [4, 0, 0]  # the deadlock, mended, and the ring
    assert "allreduce" in pictures[0][0]
    for texts, _ in pictures:
        assert [text for text in texts if text.startswith("rank ")] == [f"rank {rank}" for rank in range(4)]

    cells = {cell["id"]: printed(cell) for cell in notebook["cells"]}
    everything = "".join(cells.values())
    assert "the cycle: rank 0 -> rank 1 -> rank 2 -> rank 3 -> rank 0" in everything
    assert "rank 2 waits in send of 8 bytes to rank 3, at cell:3 in ring" in everything
    (debugged,) = [text for text in cells.values() if "pdb> " in text.lower() or "(Pdb) " in text]
    values = re.findall(r"(?:ipdb>|\(Pdb\)) (\(2, \[20\.0\]\)|\[60\.0\])", debugged)
    assert values == ["(2, [20.0])", "[60.0]"]
    # 6 steps of alpha + (32,000 bytes / 4) beta
    assert "clock 60.000 µs, formula 60.000 µs" in everything


@pytest.mark.slow
def test_a_cell_with_an_exception_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    empty = json.dumps({**json.loads(NOTEBOOK.read_text(encoding="utf-8")), "cells": []})
    with pytest.raises(outputs.PageError, match="ZeroDivisionError"):
        executed(with_cells(empty, "1 / 0"))


def test_cells_with_other_outputs_are_named_unless_they_vary() -> None:
    """Lines of the package are not compared."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    other = json.loads(text)
    for cell in other["cells"]:
        for output in cell.get("outputs", ()):
            output["text"] = ["something else"]
    printing = [cell["id"] for cell in other["cells"] if cell.get("outputs")]
    (varying,) = [cell["id"] for cell in other["cells"] if "varies" in cell["metadata"].get("tags", ())]
    assert outputs.differing_cells(text, json.dumps(other)) == [name for name in printing if name != varying]
    moved = re.sub(r"at hybridnn/[\w/]+\.py:\d+ in ", "at hybridnn/other.py:1 in ", text)
    assert moved != text
    assert outputs.differing_cells(text, moved) == []


FOLDER = ROOT / "docs" / "learn" / "notebooks"
LARGEST_BYTES = 300_000

MOVE_SLIDERS = """
import json

pictures = {}
found = {id(value): name for name, value in globals().items() if isinstance(value, interactive) and name[0] != "_"}
for name in found.values():
    controls, drawn = globals()[name], set()
    for control in controls.kwargs_widgets:
        before = control.value
        options = getattr(control, "options", None)
        if isinstance(before, bool):
            ends = False, True
        else:
            ends = (options[0], options[-1]) if options else (control.min, control.max)
        for value in ends:
            controls.result = None
            control.value = value
            if controls.result is None:
                controls.update()
            assert controls.result is not None, f"{name}: nothing is drawn for {control.description} = {value}"
            drawn.add(controls.result.data)
        control.value = before
    pictures[name] = len(drawn)
print(json.dumps(pictures))
"""
"""A cell that sets every slider to its two ends and prints the number of different pictures."""


def test_features_replay_is_called_the_same_on_all_pages() -> None:
    for name in ("learn/stale-pipelines.md", "use/pipelines.md"):
        (row,) = re.findall(r"^\| `fr`.*$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert re.search("repeated with it.*replayed", row), name


def digits() -> Any:
    return load_dataset("digits").train


def serial_losses(trainer: Trainer, epochs: int) -> list[float]:
    """Losses of the epochs of digits, by one process."""
    return [epoch.train_loss for epoch in trainer.fit(digits(), epochs=epochs).epochs]


def check_layer(found: dict[str, Any]) -> None:
    start = {name: np.array(values) for name, values in found["start"].items()}
    trainer = Trainer(
        MLP([64, 32, 10], "tanh"), SGD(lr=0.5, momentum=0), batch_size=100, dtype="float64", initial_weights=start
    )
    pixels, labels = digits().pixels[:100] / 16, digits().labels[:100]
    losses = [epoch.train_loss for epoch in trainer.fit(pixels, labels, epochs=40).epochs]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-10)
    assert losses[-1] < 0.2
    np.testing.assert_allclose(found["numeric"], found["exact"], atol=1e-8 * np.abs(found["exact"]).max(), rtol=0)


def check_one_gradient(found: dict[str, Any]) -> None:
    start = {"layers.0.weight": np.array(found["weights"]), "layers.0.bias": np.zeros(10)}
    trainer = Trainer(MLP([64, 10]), SGD(lr=0.1), batch_size=103, dtype="float64", initial_weights=start)
    trainer.fit(digits().pixels[:103] / 16, digits().labels[:103], epochs=1)
    expected = trainer.gradients()["layers.0.weight"]
    np.testing.assert_allclose(found["four_ranks"], expected, atol=1e-13 * np.abs(expected).max(), rtol=0)
    once, averages = zip(*found["differences"], strict=True)
    assert max(once) < 1e-12
    assert len(once) == 7
    assert min(averages[1:]) > 1e-4


def check_grid(found: dict[str, Any]) -> None:
    losses = serial_losses(Trainer(MLP([64, 42, 42, 10]), SGD(lr=0.1), dtype="float64"), 2)
    assert len(found["losses"]) == 5
    for on_grid in found["losses"]:
        np.testing.assert_allclose(on_grid, losses, rtol=1e-10)
    assert found["layer_error"] < 1e-13


def check_pipelines(found: dict[str, Any]) -> None:
    trainer = Trainer(MLP([64, 32, 32, 32, 10]), SGD(lr=0.1), dtype="float64")
    trainer.fit(digits(), epochs=1)
    expected = np.concatenate([values.ravel() for _, values in sorted(trainer.weights().items())])
    np.testing.assert_allclose(found["weights"], expected, rtol=0, atol=1e-12)
    assert set(found["errors"]) == {"gpipe", "1f1b", "zb-h1"}
    assert max(found["errors"].values()) < 1e-12
    assert np.abs(found["bubble_errors"]).max() < 1e-12
    assert found["peaks"] == {"gpipe": [8] * 4, "1f1b": [4, 3, 2, 1], "zb-h1": [4] * 4}
    assert set(found["activations_sent"].values()) == {3 * 4 * 18}


def check_stale_weights(found: dict[str, Any]) -> None:
    optimizer = SGD(lr=0.02, momentum=0.9)
    trainer = Trainer(MLP([64, 32, 32, 32, 10]), optimizer, batch_size=100, dtype="float64", shuffle=False)
    losses = found["losses"]
    np.testing.assert_allclose(losses["sequential"], serial_losses(trainer, 10), rtol=1e-10)
    assert set(found["replay_errors"]) == {"sequential", "ddg", "pipedream", "vanilla", "spectrain"}
    assert max(found["replay_errors"].values()) < 1e-10
    assert losses["ddg"] == losses["pipedream"]
    assert losses["sequential"][-1] < losses["spectrain"][-1] < losses["pipedream"][-1]
    assert max(found["limit_errors"]) < 1e-6


Check = Callable[[dict[str, Any]], None]

LESSONS: dict[str, tuple[str, Check]] = {
    "layer_by_hand": (
        """dict(losses=losses, start={name: values.tolist() for name, values in start.items()},
             numeric=numeric.tolist(), exact=exact.tolist())""",
        check_layer,
    ),
    "one_gradient": (
        "dict(weights=W.tolist(), four_ranks=run.results[0].tolist(), differences=list(differences.values()))",
        check_one_gradient,
    ),
    "process_grid": ("dict(losses=list(trained.values()), layer_error=layer_error)", check_grid),
    "pipelines": (
        """dict(weights=np.concatenate([values.ravel() for _, values in sorted(trained.items())]).tolist(),
             errors=training_errors, bubble_errors=bubble_errors, peaks=peaks, activations_sent=activations_sent)""",
        check_pipelines,
    ),
    "stale_weights": (
        """dict(losses={method: losses for method, (_, losses, _) in trained.items()},
             replay_errors=replay_errors, limit_errors=limit_errors)""",
        check_stale_weights,
    ),
}
"""By the name of a notebook, an expression of its results, and their check."""


def committed(name: str) -> str:
    return (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lesson", LESSONS)
def test_results_agree_with_one_process_and_sliders_draw(lesson, monkeypatch, tmp_path) -> None:
    quiet_kernel(monkeypatch, tmp_path)
    text, (results, check) = committed(lesson), LESSONS[lesson]
    # Unknown types are NumPy's numbers.
    results = f"import json\nprint(json.dumps({results}, default=float))"
    notebook = json.loads(executed(with_cells(text, results, MOVE_SLIDERS)))
    pictures, found = (json.loads(printed(notebook["cells"].pop())) for _ in range(2))
    assert outputs.differing_cells(text, json.dumps(notebook)) == []
    check(found)
    assert pictures
    assert all(number > 2 for number in pictures.values()), pictures


def test_stored_notebooks_have_pictures_and_questions() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(LESSONS)
    for lesson in LESSONS:
        text = committed(lesson)
        assert len(text.encode()) < LARGEST_BYTES
        assert "jupyter.widget" not in text
        cells = json.loads(text)["cells"]
        numbers = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
        assert numbers == [*range(1, len(numbers) + 1)]
        pictured = False
        for cell in cells:
            pictured = pictured or any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", ()))
            assert pictured or "interactive(" not in "".join(cell["source"]), "sliders before the first picture"
        questions, _, ideas = "".join(cells[-1]["source"]).partition("## What to try")
        questions, _, answers = questions.partition("<summary>Answers</summary>")
        numbered = [re.findall(r"^\d\. ", part, re.MULTILINE) for part in (questions, answers)]
        assert 2 <= len(numbered[0]) <= 4
        assert numbered[0] == numbered[1]
        assert len(re.findall(r"^\* ", ideas, re.MULTILINE)) >= 3
