"""`hybridnn formulas`: the papers' numbers by hand, maps, pictures, and wrong input."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridnn.cost.machine_file import require_machine
from hybridnn.cost.plan import best_exact
from hybridnn.cost.prediction import Workload
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn_papers.formulas import best_grid
from reference.command_line import Run, error_line
from reference.pages import ROOT


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn formulas`` in an empty folder."""
    return partial(run_hybridnn, "formulas")


def facts(run: Run, *arguments: str) -> Any:
    code, text, err = run(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(text)


def test_laugier_by_hand(run: Run) -> None:
    """One layer of 1024 x 1024 elements of one byte, 4 ranks: alpha and beta are 1 and 0.5 seconds."""
    options = ("--network", "2x1024", "--batch", "64", "--ranks", "4", "--alpha", "1", "--beta", "0.5")
    found = facts(run, "laugier", *options, "--itemsize", "1")
    rows = {(row["section"], row["batch_ranks"], row["model_ranks"]): row for row in found["steps"]}
    batch, model, mixed = rows["5 batch", 4, 1], rows["6 model", 1, 4], rows["7 integrated", 2, 2]
    weights, outputs = 1024 * 1024, 64 * 1024
    assert (batch["messages"], batch["exact_bytes"]) == (2 * 2, 2 * weights * 3 / 4)
    assert batch["paper_bytes"] == pytest.approx(2 * weights * 4 / 3)
    assert batch["exact_seconds"] == 4 + weights * 3 / 4
    assert (model["messages"], model["exact_bytes"]) == (3 * 2, 3 * outputs * 3 / 4)
    # One layer: its outputs are gathered, no input gradient is needed, and half of the weights are reduced.
    assert (mixed["messages"], mixed["exact_bytes"]) == (1 + 2, outputs / 2 / 2 + 2 * weights / 2 / 2)
    assert mixed["paper_bytes"] == 4 * mixed["exact_bytes"]
    assert rows["7 integrated", 4, 1]["paper_bytes"] is None
    scatter = next(row for row in found["scatters"] if row["batch_ranks"] == row["model_ranks"] == 2)
    part = 32 * 1024
    assert (scatter["process_bytes"], scatter["threshold_bytes"]) == (part, None)  # always
    assert (scatter["direct_seconds"], scatter["scatter_broadcast_seconds"]) == (1 + 2 * part, 2 + 2 * part)
    assert (scatter["paper_scatter_broadcast_seconds"], scatter["paper_threshold_bytes"]) == (2 + part, 1)


def test_laugier_as_text(run: Run) -> None:
    code, text, err = run("laugier", "--ranks", "4", "--batch", "2", "--network", "16-3x512-2")
    assert (code, err) == (0, "")
    assert "network 16-512-512-512-2: 533,504 weights" in text
    rows = re.findall(r"^ +7 integrated +(\d) +(\d) ", text, re.MULTILINE)
    assert rows == [("2", "2"), ("1", "4")]  # four batch ranks would have no sample


def test_kang_table_1(run: Run) -> None:
    found = facts(run, "kang", "--stages", "4", "--forward", "4", "--backward", "8")
    rows = {row["method"]: row for row in found["methods"]}
    assert {name: (row["time"], row["paper_time"]) for name, row in rows.items()} == {
        "sequential": (12, 12),
        "ddg": (6, 6),
        "fr": (7, 6),
        "pipedream": (3, 3),
    }
    assert [state["weights"] for state in rows["pipedream"]["stored"]] == [4, 3, 2, 1]
    assert [state["inputs"] for state in rows["fr"]["stored"]] == [4, 3, 2, 1]
    text = run("kang", "--stages", "3")[1]
    assert re.search(r"^ +ddg +3/3/3 +2/2/2 +1/1/1 *$", text, re.MULTILINE)
    assert re.search(r"^ +fr +2 +1\.66667 +1\.5 *$", text, re.MULTILINE)


def test_chen_figure_3(run: Run) -> None:
    found = facts(run, "chen")
    assert found["data_parallel_bytes"] == 2 * 3 * 4 * (3072 * 2048 + 31 * 2048**2 + 2048 * 10)
    assert found["pipeline_bytes"] == 2 * 3 * 4 * 128 * 2048
    assert "528" in run("chen")[1]
    assert facts(run, "chen", "--ranks", "1")["ratio"] is None


def test_numbers_of_the_chapter(run: Run) -> None:
    found = facts(run, "book")
    assert found["vanilla"] == {"slots": 6, "working_slots": 2, "idle_slots": 4, "utilisation": pytest.approx(1 / 3)}
    assert (found["one_after_another_slots"], found["pipelined_slots"]) == (9, 5)
    assert re.search(r"^ +utilisation +1/N +1\.00% *$", run("book", "--gpus", "100")[1], re.MULTILINE)


def test_map_of_formulas_and_of_a_machine(run: Run) -> None:
    options = ("--ranks", "8", "--layers", "2", "--widths", "32,512", "--batches", "4,256", "--machine", "cluster-1024")
    formulas, machine = facts(run, "map", *options)
    for cell in formulas["cells"]:
        expected = best_grid([cell["width"]] * 3, cell["batch"], 8, 1e-6, 1.25e-10)
        assert tuple(cell["grid"]) == expected
    for cell in machine["cells"]:
        workload = Workload(
            MLP([cell["width"]] * 3), cell["batch"], cell["batch"], optimizer=SGD(momentum=0.0), classification=False
        )
        wanted = {"pipeline": 1, "shared_replicas": False}
        assert tuple(cell["grid"]) == best_exact(workload, require_machine("cluster-1024"), 8, wanted).layout.stages[0]
    assert run("map", *options)[1].count("width \\ minibatch") == 2


def test_maps_have_empty_cells_and_are_drawn(run: Run, run_as_ranks: Run) -> None:
    (found,) = facts(run, "map", "--ranks", "8", "--widths", "2,4", "--batches", "2")
    assert [cell["grid"] for cell in found["cells"]] == [None, [2, 4]]
    assert re.search(r"^ +2 +- *$", run("map", "--ranks", "8", "--widths", "2", "--batches", "2")[1], re.MULTILINE)
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        code, text, err = run_as_ranks(
            "formulas", "map", "--ranks", "4", "--widths", "2,8", "--batches", "2,64", "--plot", name
        )
        assert (code, text.count("ranks:"), err) == (0, 1, "")
        assert text.endswith(f"{name}\n")
        assert Path(name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["laugier", "--network", "16"], "--network = '16': "),
        (["laugier", "--network", "16-0-2"], "--network = '16-0-2': "),
        (["laugier", "--network", "999999999x2-2"], "--network"),
        (["laugier", "--ranks", "9999999999"], "--ranks = 9999999999: "),
        (["laugier", "--alpha", "nan"], "--alpha"),
        (["kang", "--forward", "inf"], "--forward = inf"),
        (["kang", "--stages", "100000"], "--stages = 100000"),
        (["chen", "--ranks", "40"], "--ranks = 40: at most 33, the layers"),
        (["book", "--gpus", "0"], "--gpus"),
        (["map", "--widths", "64,0"], "--widths = '64,0': "),
        (["map", "--batches", "a"], "--batches = 'a': "),
        (["map", "--plot", "a.gif"], "--plot = 'a.gif': "),
        (["map", "--machine", "no.toml"], "no.toml"),
        (["gholami"], "gholami"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    assert message in error_line(run(*arguments))
    assert list(Path.cwd().iterdir()) == []


def test_without_a_paper_the_papers_are_listed(run: Run) -> None:
    code, text, _ = run()
    assert code == 0
    assert all(name in text for name in ("laugier", "kang", "chen", "book", "map"))


TABLE_1 = """
data = {name = "synthetic", synthetic = {task = "classification", inputs = 1024, outputs = 10}}
model.hidden = [1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024]
training = {batch_size = 128, drain_every = 10}
parallel.partition = "uniform"
"""


def test_simulated_speeds_of_table_1_are_those_of_the_page(run_hybridnn: Run) -> None:
    Path("table-1.toml").write_text(TABLE_1)
    seconds = {}
    for method in ("sequential", "ddg", "fr", "pipedream"):
        for stages in (3, 4):
            settings = {"pipeline": stages, "method": method, "barriers": str(method in ("ddg", "fr")).lower()}
            options = [part for name, value in settings.items() for part in ("--set", f"parallel.{name}={value}")]
            place = ("--machine", "cluster-1024", "--ranks", str(stages), "--format", "json")
            out = run_hybridnn("simulate", "table-1.toml", *place, *options)[1]
            seconds[method, stages] = json.loads(out)["seconds_per_step"]
    page = " ".join((ROOT / "papers" / "docs" / "kang-2019.md").read_text(encoding="utf-8").split())
    for method in ("ddg", "fr", "pipedream"):
        ratios = (f"{seconds['sequential', stages] / seconds[method, stages]:.2f}" for stages in (3, 4))
        assert " and ".join(ratios) in page
