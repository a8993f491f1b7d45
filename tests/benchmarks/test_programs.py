"""The programs of the benchmarks, with networks so small that their figures mean nothing."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import benchmarks.__main__ as driver
from benchmarks import fastest_layouts, gpu_kernels, gpu_training, parts
from benchmarks.cases import Case, our_run
from benchmarks.fastest_layouts import random_network, study_text
from benchmarks.limits import products_in, products_of
from hybridnn import ProcessGrid
from hybridnn.study.cells import make_cells
from hybridnn.study.results import StudyResults
from hybridnn.study.study_file import load_study
from reference.emulated_device import EmulatedCupy
from reference.finished_runs import made_study, measured_line, prediction_line

TINY = Case("4-6-6-2", (4, 6, 6, 2), 8, "regression", 2, 1, stages=(2, 1))
RATIO = {"case": "4-64-64-64-1", "batch_size": 100, "ratio": 2.5, "ratio_min": 1.25, "ratio_max": 4.0}
SHARED = {
    **RATIO,
    "ms_per_step": {"one": 35.1, "own": 27.8, "shared": 24.06},
    "own_over_one": RATIO,
    "shared_over_own": RATIO,
}


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(driver.__file__).parent.glob("[a-z]*.py")))
def test_every_program_is_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")


def test_the_chosen_parts_are_measured_shown_and_written(tmp_path, monkeypatch, capsys) -> None:
    started: list[tuple[Any, ...]] = []
    methods = {"case": "8x1024", "way": "gpipe", "step_seconds": 0.1, "over_sequential": 1.5}
    methods |= {"formula_over_sequential": None, "computing": 0.5, "other": 0.25}
    methods |= {"transfer_idle": 0.1, "imbalance_idle": 0.1, "transfer": 0.05}
    rows = {"shared_replicas": SHARED, "pipeline": methods}

    def run_lines(*call: Any) -> list[dict[str, Any]]:
        started.append(call)
        return [dict(rows[call[1]])]

    monkeypatch.setattr(parts, "run_lines", run_lines)
    words = ["shared", "pipeline", "--case", "4-64", "--pairs", "3", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    driver.main()
    assert started == [(2, module, "--pairs", "3", "4-64") for module in rows]
    (kept,), (chart,) = tmp_path.glob("*-shared-pipeline.json"), tmp_path.glob("*-shared-pipeline.png")
    assert json.loads(kept.read_text())["shared"] == [SHARED]
    assert chart.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(cell in printed for cell in ("35.10", "2.50 (1.25-4.00)", "gpipe", "100.0"))


@pytest.mark.slow
@pytest.mark.mpi(ranks=[2])
def test_parts_compared_with_pytorch_and_among_each_other_have_ratios(comm: MPI.Intracomm) -> None:
    pytest.importorskip("torch")
    from benchmarks import batch_parallel, model_parallel, partitions, pipeline, shared_replicas
    from benchmarks.ranks import gloo

    with gloo():
        rows = [
            batch_parallel.measure(TINY, 1),
            model_parallel.measure(TINY, "columns", 1),
            pipeline.measure(TINY, "gpipe", 1),
            partitions.measure(TINY, "gpipe", 1),
            shared_replicas.measure(TINY, 1),
        ]
    assert all(0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] for row in rows)


def test_products_that_are_timed_alone_are_those_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, ours = our_run(TINY, ProcessGrid())
    of_the_run, of_the_sizes, before = products_in(ours), products_of(TINY), trainer.weights()
    shapes: list[Any] = []
    monkeypatch.setattr(np, "matmul", lambda a, b, out: shapes.append((a.shape, b.shape, out.shape)))
    for products in (of_the_run, of_the_sizes):
        shapes.clear()
        products()
        assert sum(2 * rows * inner * columns for (rows, inner), (_, columns), _ in shapes) == (
            TINY.steps * TINY.products_flops
        )
    assert all(np.array_equal(before[name], array) for name, array in trainer.weights().items())


def test_a_training_beside_pytorch_is_measured_and_one_refusal_costs_one_figure(tmp_path, monkeypatch, capsys) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda *_, **__: 1 / 0)
    for name, value in (("SECONDS", 0.01), ("PAIRS", 1)):
        monkeypatch.setattr(gpu_training, name, value)
    results = tmp_path / "training.json"
    words = ["--device", "cpu", "--case", "4-64", "--json", str(results), "--no-chart"]
    monkeypatch.setattr(sys, "argv", ["gpu_training", *words])
    with pytest.raises(SystemExit, match="True"):
        gpu_training.main()
    (row,) = json.loads(results.read_text())["training"]
    assert list(row["errors"]) == ["compiled"]
    assert {"ratio", "ratio_plain", "products_share", "torch_products_share", "tflop_per_s"} <= set(row)
    assert "ratio_compiled" not in row
    assert "samples/s" in capsys.readouterr().out


def timed_cupy() -> EmulatedCupy:
    """It has events between which half a millisecond always passes."""
    cupy, facts = EmulatedCupy(), {"name": b"processor", "multiProcessorCount": 1}
    cupy.cuda.Event = lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    cupy.cuda.get_elapsed_time = lambda start, stop: 0.5
    cupy.cuda.Device = lambda: SimpleNamespace(id=0)
    cupy.cuda.runtime.getDeviceProperties, cupy.cuda.runtime.driverGetVersion = lambda number: facts, lambda: 0
    return cupy


@pytest.mark.slow
def test_every_kernel_runs_and_has_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, numbers, results = timed_cupy(), 2 * gpu_kernels.COLUMNS, tmp_path / "results.json"
    monkeypatch.setattr(gpu_kernels, "cupy_kernels", cupy.kernels)
    monkeypatch.setattr(gpu_kernels, "load_cupy", lambda: cupy)
    monkeypatch.setattr(gpu_kernels, "PRODUCTS", ((4, 5, 6),))
    monkeypatch.setattr(gpu_kernels, "torch_products", partial(gpu_kernels.torch_products, device="cpu"))
    monkeypatch.setattr("sys.argv", ["", "--numbers", str(numbers), "--runs", "1", "--json", str(results)])
    gpu_kernels.main()
    found = json.loads(results.read_text())
    assert [row["tflop_per_s"] for row in found["products"]] == pytest.approx([2 * 4 * 5 * 6 / 0.5e-3 / 1e12] * 3)
    speeds = {(row["kernel"], row["dtype"]): row["gb_per_s"] for row in found["one_pass"]}
    arrays = {"copy": 2, "add": 3, "gradient of relu": 3, "SGD with momentum": 5, "AdamW": 7, "row sums": 1}
    for name, count in arrays.items():
        assert speeds[name, "float32"] == pytest.approx(count * numbers * 4 / 0.5e-3 / 1e9), name
    assert len({name for name, _, _ in cupy.launches}) > 20, "kernels of every kind were launched"


GRIDS = {"1x1": (1, 1, 1), "2x1": (1, 2, 1), "1x2": (1, 1, 2)}


def _study(folder: Path, times: Mapping[str, Sequence[float]], predicted: Mapping[str, float]) -> StudyResults:
    """Seconds per epoch of grids in rounds, and those that the model predicts."""
    runs = {}
    for grid, rounds in times.items():
        shape = GRIDS[grid]
        for number, seconds in enumerate(rounds, 1):
            lines: list[Mapping[str, Any]] = [measured_line(epoch, seconds / 10) for epoch in (1, 2)]
            lines += [prediction_line(predicted[grid] / 10)] if grid in predicted else []
            options = {"ranks": shape[1] * shape[2], "grid": shape, "seconds": [seconds] * 2, "lines": lines}
            values = {"ranks": options["ranks"], "grid": grid, "method": "-", "repeat": number}
            runs[f"{grid}-{number}"] = (values, options)
    return made_study(folder, runs)


@pytest.mark.parametrize("ranks", [2, 4])
def test_studies_of_random_networks_have_all_families(ranks: int, tmp_path: Path) -> None:
    networks = [random_network(0, number) for number in range(10)]
    assert len(set(networks)) == 10
    assert networks[3] == random_network(0, 3)
    for network in networks:
        (tmp_path / "study.toml").write_text(study_text(network, "one", ranks, 3, "cluster-1024"))
        study = load_study(tmp_path / "study.toml")
        grids = [cell.values["grid"] for cell in make_cells(study).cells if cell.values["repeat"] == 1]
        assert (study.keys.compares, grids[:3]) == ("times", ["1x1", f"{ranks}x1", f"1x{ranks}"])
        assert grids[3:] == (["2x1x1"] if ranks == 2 else ["2x2", "4x1x1", "2x2x1"])


def test_a_named_layout_is_right_as_far_as_the_second_measurement_tells(tmp_path, monkeypatch, capsys) -> None:
    one, other = [1.0, 1.01, 0.99], [1.2, 1.21, 1.19]
    noisy = [0.8, 1.2, 0.9]
    said, predicted = {"1x1": [2.0] * 3, "2x1": one, "1x2": other}, {"1x1": 2.0, "2x1": 2.0, "1x2": 1.0}
    second = [{"2x1": one, "1x2": other}, {"2x1": other, "1x2": one}, {"2x1": one, "1x2": noisy}]
    results = iter(
        _study(tmp_path / f"{number}-{part}", {"1x1": [2.0] * 3, **times}, predicted)
        for number, again in enumerate(second)
        for part, times in enumerate((said, again))
    )
    monkeypatch.setattr(fastest_layouts, "run", lambda *arguments: next(results))
    monkeypatch.setattr(sys, "argv", ["fastest_layouts", "--networks", "3", "--folder", str(tmp_path / "runs")])
    fastest_layouts.main()
    _, _, *rows, _, right, model, marked = capsys.readouterr().out.splitlines()
    cells = [row.strip("| ").split(" | ")[1:] for row in rows]
    answers = [(named, fastest.split(",")[0], answer) for named, fastest, _, answer, _, _ in cells]
    assert answers == [("2x1", "2x1", "yes"), ("2x1", "1x2", "no"), ("2x1", "1x2", "yes")]
    assert [row[-2:] for row in cells] == [["1x2", "20%"], ["1x2", "0%"], ["1x2", "0%"]]
    assert right == "the named layout is right: 2 of 3"
    assert model == "the model's first choice loses at most 10%: 2 of 3"
    assert marked.startswith("marked as disturbed: 0 of 54 cells")
