"""``python -m benchmarks``: which parts it runs and how, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as driver
from benchmarks import launch, parts
from benchmarks.cases import CASES, MICROBATCHES
from benchmarks.choice import Choice

RATIO = {"case": "4-64-64-64-1", "batch_size": 100, "ratio": 2.0, "ratio_min": 1.0, "ratio_max": 3.0}
TIMES = {"one": 1.0, "own": 2.0, "shared": 3.0}
SHARED = {**RATIO, "ms_per_step": TIMES, "own_over_one": RATIO, "shared_over_own": RATIO}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the driver starts, none of which runs."""
    calls: list[tuple[Any, ...]] = []

    def run_lines(*call: Any) -> list[dict[str, Any]]:
        calls.append(call)
        return [{**RATIO, "way": "polling", "ms_per_step": 1.0}] if call[1] == "progress_thread" else [dict(SHARED)]

    monkeypatch.setattr(parts, "run_lines", run_lines)
    return calls


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    driver.main()


def test_parts_run_that_are_named(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    run(
        monkeypatch,
        "shared",
        "progress",
        "--case",
        "4-64",
        "--case",
        "@512",
        "--pairs",
        "3",
        "--results",
        str(tmp_path),
    )
    words = "--pairs", "3", "4-64", "@512"
    assert started == [(2, "shared_replicas", *words), (2, "progress_thread", *words)]
    (chart, kept) = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (chart.suffix, kept.suffix) == (".png", ".json")
    assert kept.stem.endswith("-shared-progress")
    figures = json.loads(kept.read_text())
    assert set(figures) == {"date", "machine", "numpy", "shared", "progress"}
    assert figures["shared"] == [SHARED]


def test_without_names_all_parts_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(part: parts.Part, words: list[str], pairs: int | None) -> list[Any]:
        assert not words
        assert pairs is None
        measured.append(part.module)
        return []

    monkeypatch.setattr(parts.Part, "measure", measure)
    run(monkeypatch, "--results", str(tmp_path))
    assert measured == [
        "serial",
        "batch_parallel",
        "model_parallel",
        "pipeline",
        "shared_replicas",
        "progress_thread",
        "in_process",
        "class_kit",
    ]


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "serial", "batches")
    assert "no part is called batches" in capsys.readouterr().err


def test_rows_compared_with_pytorch_have_the_memory_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"case": "a", "way": "gpipe", "ratio": 1.0}, {"case": "b", "way": "fr"}]
    monkeypatch.setattr(parts, "run_lines", lambda *call: rows)
    monkeypatch.setattr(parts, "grown_bytes", lambda ranks, module, row: {"of": (ranks, module, row["way"])})
    first, second = parts.PARTS["pipeline"].measure([], None)
    assert first["of"] == (2, "pipeline", "gpipe")
    assert "of" not in second


def test_lines_of_figures_are_read_and_others_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("""#!/bin/sh
echo "a warning"; echo '{"command": "'"$*"'", "threads": "'"$OPENBLAS_NUM_THREADS"'"}'
""")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    expected = {"command": "-m benchmarks.serial --pairs 1 784", "threads": "1"}
    assert launch.run_lines(1, "serial", "--pairs", "1", "784") == [expected]


def test_words_choose_among_networks() -> None:
    assert Choice((), 9).among(CASES) == list(CASES)
    assert [case.name for case in Choice(("784", "2@100"), 9).among(CASES)] == [CASES[1].name, "16-4x1024-2"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_networks_can_be_cut(case: Any) -> None:
    layers = len(case.sizes) - 1
    assert sum(case.stages) == layers
    assert case.batch_size % MICROBATCHES == 0
    # The stages multiply alike: forward, for the weights, and but for the first layer for the inputs.
    work = [(2 if place == 0 else 3) * case.sizes[place] * case.sizes[place + 1] for place in range(layers)]
    parts_of_work = sum(work[: case.stages[0]]), sum(work[case.stages[0] :])
    other_cuts = [max(sum(work[:cut]), sum(work[cut:])) for cut in range(1, layers)]
    assert max(parts_of_work) <= 1.1 * min(other_cuts)
