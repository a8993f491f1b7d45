"""Execution and outputs of the notebook of ranks in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks
from reference.notebooks import executed, printed, quiet_kernel, with_cells
from reference.pages import ROOT, outputs

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
