"""The report of `make gpu-day`: verdicts, tables and the chart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_report import NOT_MEASURED, verdicts_of, write_report

LARGE = "4096-8x4096-4096"
EAGER = "speed over PyTorch eager"


def row(case: str, precision: str = "fp32", **figures: Any) -> dict[str, Any]:
    speeds = {
        "our_samples_per_second": 2.0,
        "their_samples_per_second": 1.0,
        "tflop_per_s": 1.0,
        "torch_products_share": 0.9,
    }
    ratios = {f"{name}{end}": 2.0 for name in ("ratio", "ratio_compiled") for end in ("", "_min", "_max", "_plain")}
    return {
        "case": case,
        "precision": precision,
        "batch_size": 1,
        "torch_products_share": 0.9,
        **speeds,
        **ratios,
        **figures,
    }


def piece(figures: Any, outcome: str = "done") -> dict[str, Any]:
    return {"outcome": outcome, "seconds": 1.0, "date": "2026-01-01", "commit": "abc", "figures": figures}


def counted(passed: int, outcome: str = "done", **ends: Any) -> dict[str, Any]:
    return piece({"passed": passed, "skipped": {}, "failed": [], "errors": [], **ends}, outcome)


def pieces_of(*rows: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"training": piece({"training": list(rows)}), **{name.replace("_", " "): it for name, it in others.items()}}


def test_verdicts_compare_with_the_targets() -> None:
    rows = [
        row("4-64-64-64-1", ratio=2.4, ratio_compiled=0.9),
        row(LARGE, ratio=1.1, torch_products_share=0.86),
        row(LARGE, "TF32", ratio=1.5, ratio_compiled=0.855, torch_products_share=0.5),
    ]
    found = {(one.figure, one.what): one.verdict for one in verdicts_of(pieces_of(*rows))}
    assert found[EAGER, f"{LARGE}, fp32"] == "met, 0% above"
    assert found[EAGER, "4-64-64-64-1, fp32"] == "met, 118% above"
    assert found[f"{EAGER}, small networks", "4-64-64-64-1, fp32"] == "missed by 20.0%"
    assert found["speed over torch.compile with CUDA graphs", "4-64-64-64-1, fp32"] == "missed by 10.0%"
    assert found["speed over the faster of both", f"{LARGE}, TF32"] == "missed by 10.0%"
    assert found["speed over the faster of both", f"{LARGE}, bf16"] == NOT_MEASURED
    assert found["share of cuBLAS's rate", f"{LARGE}, fp32"] == "met, 1% above"
    assert found["share of cuBLAS's rate", f"{LARGE}, TF32"] == "missed by 41.2%"
    assert found[EAGER, "16-4x1024-2, fp32"] == NOT_MEASURED


@pytest.mark.parametrize(
    ("of_tests", "verdict", "found"),
    [
        (counted(3, skipped={"no NCCL": 2}), "met", "3 passed, 0 failed, 0 ended with errors, 2 skipped (no NCCL)"),
        (
            counted(3, "failed", failed=["a", "b"], errors=["c"]),
            "missed by 2 tests",
            "3 passed, 2 failed, 1 ended with errors",
        ),
        (counted(3, "failed", errors=["c"]), f"{NOT_MEASURED}: failed", "3 passed, 0 failed, 1 ended with errors"),
        (counted(3, "out of time"), f"{NOT_MEASURED}: out of time", "3 passed, 0 failed, 0 ended with errors"),
        (
            counted(0, skipped={"no GPU": 9}),
            NOT_MEASURED,
            "0 passed, 0 failed, 0 ended with errors, 9 skipped (no GPU)",
        ),
        ({"outcome": "left out"}, f"{NOT_MEASURED}: left out", ""),
    ],
)
def test_only_wrong_results_miss_the_target_of_the_tests(of_tests: Any, verdict: str, found: str) -> None:
    (one,) = [one for one in verdicts_of({"tests of kernels": of_tests}) if one.what == "tests of kernels"]
    assert (one.verdict, one.found) == (verdict, found)


def test_missing_figures_of_a_network_are_told(tmp_path: Path) -> None:
    whole = row("16-4x1024-2", errors={"compiled": "RuntimeError: no\ncompiler"})
    part = {key: value for key, value in whole.items() if "compiled" not in key}
    found = {one.figure: one.verdict for one in verdicts_of(pieces_of(part)) if one.what == "16-4x1024-2, fp32"}
    assert found == {EAGER: "met, 82% above", "speed over torch.compile with CUDA graphs": NOT_MEASURED}
    bare = {key: part[key] for key in ("case", "precision", "batch_size")} | {"case": LARGE}
    write_report({"devices": {"NVIDIA H200": pieces_of(part, bare)}}, [], tmp_path)
    lines = (tmp_path / "gpu-day.md").read_text().splitlines()
    assert "| 16-4x1024-2, batch 1, fp32 | 2 | 1 | 2.00 (2.00-2.00) | 2.00 |  |  | 90% | 1.00 |  |  |" in lines
    assert f"| {LARGE}, batch 1, fp32 |  |  |  |  |  |  |  |  |  |  |" in lines
    assert "* 16-4x1024-2, fp32, compiled: RuntimeError: no compiler" in lines
    assert (tmp_path / "gpu-day.png").exists()


def test_the_report_has_tables_and_where_matplotlib_is_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = {
        "one_pass": [{"dtype": "float32", "kernel": "copy", "gb_per_s": 4000.0, "share_of_copy": 1.0}],
        "products": [{"product": "fp32, 1 x 2 x 3", "tflop_per_s": 50.0, "torch_tflop_per_s": 51.0}],
    }
    pieces = pieces_of(row("16-4x1024-2", our_bytes=3e6, their_bytes=4e6), kernels=piece(kernels))
    write_report({"devices": {"NVIDIA H200": pieces}}, ["kernels", "training", "later"], tmp_path)
    lines = (tmp_path / "gpu-day.md").read_text().splitlines()
    assert lines[:3] == ["# Measurements on NVIDIA H200", "", "## Targets"]
    network = "16-4x1024-2, batch 1, fp32"
    assert f"| {network} | 2 | 1 | 2.00 (2.00-2.00) | 2.00 | 2.00 |  | 90% | 1.00 | 3 | 4 |" in lines
    assert "| copy, float32 | 4,000 | 100% |" in lines
    assert "| fp32, 1 x 2 x 3 | 50.0 | 51.0 |" in lines
    assert "| kernels | done | 1 | 2026-01-01 | abc |" in lines
    assert "| later | not run |  |  |  |" in lines
    assert (tmp_path / "gpu-day.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "gpu-day.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_report({"devices": {"NVIDIA H200": pieces}}, [], tmp_path)
    assert "gpu-day.png is not drawn" in capsys.readouterr().err


def test_devices_are_reported_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("benchmarks.gpu_report.draw_chart", lambda figures, *_: drawn.append(figures))
    devices = {
        "NVIDIA H200": pieces_of(row("16-4x1024-2", ratio=1.5)),
        "Tesla T4": pieces_of(row("16-4x1024-2", ratio=3.5)),
    }
    write_report({"devices": devices}, [], tmp_path)
    first, second = (tmp_path / "gpu-day.md").read_text().split("# Measurements on Tesla T4\n")
    assert "1.50 (2.00-2.00)" in first
    assert "3.50" not in first
    assert "The targets are meant for an H200." in second
    assert "3.50 (2.00-2.00)" in second
    assert [(row["device"], row["way"]) for row in drawn[0]["eager"]] == [
        ("NVIDIA H200", "fp32, NVIDIA H200"),
        ("Tesla T4", "fp32, Tesla T4"),
    ]
