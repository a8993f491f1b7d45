"""`make gpu-day`: which pieces run, what is kept of them, and the verdicts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import Piece, pieces_of_the_day, read_state, run_day, run_piece
from benchmarks.gpu_report import NOT_MEASURED, verdicts_of, write_report
from hybridnn.errors import DataError
from mpi_runner.slowness import deadline

LONG = deadline(30)


def written(name: str, figures: Any, code: int = 0) -> Piece:
    """A piece that writes its results and ends with an exit code."""
    text = f"import sys; open(sys.argv[1], 'w').write({json.dumps(figures)!r}); print('ran'); sys.exit({code})"
    return Piece(name, ("-c", text, "{results}"), LONG)


def row(case: str, precision: str = "fp32", **figures: float) -> dict[str, Any]:
    speeds = {"our_samples_per_second": 2.0, "their_samples_per_second": 1.0, "tflop_per_s": 1.0}
    ratios = {f"{name}{end}": 2.0 for name in ("ratio", "ratio_compiled") for end in ("", "_min", "_max", "_plain")}
    return {"case": case, "precision": precision, "batch_size": 1, "products_share": 0.9, **speeds, **ratios, **figures}


def state_of(*rows: dict[str, Any], **tests: Any) -> dict[str, Any]:
    figures = {"device": "NVIDIA H200", "training": list(rows)}
    pieces = {"training": {"outcome": "done", "seconds": 1.0, "date": "2026-01-01", "figures": figures}}
    return {"pieces": {**pieces, **{name.replace("_", " "): piece for name, piece in tests.items()}}}


def test_a_day_goes_on_after_a_failure_and_continues_where_it_stopped(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    broken = Piece("broken", ("-c", f"open({str(runs)!r}, 'a').write('x'); raise ValueError('no such kernel')"), LONG)
    pieces = [broken, written("one", {"device": "GPU 1"})]
    state = run_day(pieces, tmp_path, LONG * 9)
    assert {name: piece["outcome"] for name, piece in state["pieces"].items()} == {"broken": "failed", "one": "done"}
    assert "no such kernel" in "".join(state["pieces"]["broken"]["output"])
    assert state == read_state(tmp_path / "gpu-day.json")
    report = (tmp_path / "gpu-day.md").read_text()
    assert "| broken | failed |" in report
    assert "ValueError: no such kernel" in report
    # What is done does not run again; what was never tried precedes what failed.
    again = run_day([*pieces, written("two", {})], tmp_path, LONG * 9)
    assert again["pieces"]["one"] == state["pieces"]["one"]
    assert list(again["pieces"]) == ["broken", "one", "two"]
    assert runs.read_text() == "xx"
    log = (tmp_path / "gpu-day.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("==")] == [
        "== broken",
        "== one",
        "== two",
        "== broken",
    ]


def test_a_piece_ends_at_its_limit_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_day, "GRACE", 0.2)
    child = tmp_path / "child"
    text = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(child)!r}, 'w').write(str(process.pid)); print('waits', flush=True); time.sleep(600)"
    )
    found = run_piece(Piece("slow", ("-c", text), deadline(3)), tmp_path / "log")
    assert found["outcome"] == "out of time"
    assert found["output"][0] == "waits"
    last = monotonic() + deadline(10)  # a killed process needs a moment to end
    while runs(int(child.read_text())):
        assert monotonic() < last
        sleep(0.02)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_pieces_start_only_if_they_end_in_time(tmp_path: Path) -> None:
    pieces = [written(name, {}) for name in ("one", "two")]
    assert set(run_day(pieces, tmp_path, LONG)["pieces"]) == {"one"}
    assert set(run_day(pieces, tmp_path, 0.0)["pieces"]) == {"one", "two"}, "one piece always starts"


def test_results_that_are_missing_or_damaged_are_failures(tmp_path: Path) -> None:
    assert run_piece(Piece("none", ("-c", "pass"), LONG), tmp_path / "log")["outcome"] == "failed"
    text = "import sys; open(sys.argv[1], 'w').write('{')"
    found = run_piece(Piece("half", ("-c", text, "{results}"), LONG), tmp_path / "log")
    assert found["outcome"] == "failed"
    assert "cannot be read" in found["output"][-1]


def test_tests_are_counted(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): raise ValueError\n"
        "@pytest.mark.skip(reason='none')\ndef test_c(): pass\n"
    )
    command = "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", str(tests), "--junitxml={results}"
    found = run_piece(Piece("tests", command, LONG), tmp_path / "log")
    assert found["outcome"] == "failed"
    assert found["figures"]["passed"] == found["figures"]["skipped"] == 1
    (failed,) = found["figures"]["failed"]
    assert failed.endswith("test_some::test_b")


def test_the_program_prints_its_report_and_begins_anew_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "load_cupy", lambda: None)
    (tmp_path / "gpu-day.json").write_text("{")
    for code, words, outcome in ((0, ["--fresh"], "done"), (3, [], "done"), (3, ["--fresh"], "failed")):
        monkeypatch.setattr(gpu_day, "pieces_of_the_day", lambda code=code: [written("one", {}, code)])
        monkeypatch.setattr("sys.argv", ["gpu_day", "--results", str(tmp_path), *words])
        with pytest.raises(SystemExit) as ended:
            gpu_day.main()
        assert ended.value.code == (outcome != "done")
        assert f"| one | {outcome} |" in capsys.readouterr().out


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"pieces": 3}'):
        (tmp_path / "gpu-day.json").write_text(text)
        with pytest.raises(DataError, match=r"gpu-day\.json is damaged"):
            run_day([], tmp_path, 1.0)


def test_verdicts_compare_with_the_targets() -> None:
    large = "4096-8x4096-4096"
    rows = [
        row("4-64-64-64-1", ratio=2.4, ratio_compiled=0.9),
        row(large, ratio=1.1, products_share=0.86),
        row(large, "TF32", ratio=1.5, ratio_compiled=0.855, products_share=0.5),
    ]
    passed = {"outcome": "done", "figures": {"passed": 3, "skipped": 1, "failed": []}}
    failed = {"outcome": "failed", "figures": {"passed": 3, "skipped": 0, "failed": ["a", "b"]}}
    verdicts = verdicts_of(state_of(*rows, tests_of_kernels=passed, tests_of_training=failed))
    found = {(one.figure, one.what): one.verdict for one in verdicts}
    eager = "speed over PyTorch eager"
    assert found[eager, f"{large}, fp32"] == "met, 0% above"
    assert found[eager, "4-64-64-64-1, fp32"] == "met, 118% above"
    assert found[f"{eager}, small networks", "4-64-64-64-1, fp32"] == "missed by 20.0%"
    assert found["speed over torch.compile with CUDA graphs", "4-64-64-64-1, fp32"] == "missed by 10.0%"
    assert found["speed over the faster of both", f"{large}, TF32"] == "missed by 10.0%"
    assert found["speed over the faster of both", f"{large}, bf16"] == NOT_MEASURED
    assert found["share of cuBLAS's rate", f"{large}, fp32"] == "met, 1% above"
    assert found["share of cuBLAS's rate", f"{large}, TF32"] == "missed by 41.2%"
    assert found[eager, "16-4x1024-2, fp32"] == NOT_MEASURED
    assert [one.verdict for one in verdicts[-2:]] == ["met", "missed by 2 tests"]


def test_tests_that_were_all_skipped_prove_nothing() -> None:
    skipped = {"outcome": "done", "figures": {"passed": 0, "skipped": 9, "failed": []}}
    assert [one.verdict for one in verdicts_of(state_of(tests_of_kernels=skipped))][-2:] == [NOT_MEASURED] * 2


def test_the_report_has_tables_and_where_matplotlib_is_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(row("16-4x1024-2", our_bytes=3e6, their_bytes=4e6))
    kernels = {
        "device": "NVIDIA H200",
        "one_pass": [{"dtype": "float32", "kernel": "copy", "gb_per_s": 4000.0, "share_of_copy": 1.0}],
        "products": [{"product": "fp32, 1 x 2 x 3", "tflop_per_s": 50.0}],
    }
    state["pieces"]["kernels"] = {"outcome": "done", "seconds": 2.0, "date": "2026-01-02", "figures": kernels}
    write_report(state, ["kernels", "training", "later"], tmp_path)
    lines = (tmp_path / "gpu-day.md").read_text().splitlines()
    assert "Device: NVIDIA H200." in lines
    network = "16-4x1024-2, batch 1, fp32"
    assert f"| {network} | 2 | 1 | 2.00 (2.00-2.00) | 2.00 | 2.00 | 90% | 1.00 | 3 | 4 |" in lines
    assert "| copy, float32 | 4,000 | 100% |" in lines
    assert "| fp32, 1 x 2 x 3 | 50.0 |" in lines
    assert "| later | not run |  |  |" in lines
    assert (tmp_path / "gpu-day.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "gpu-day.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_report(state, [], tmp_path)
    assert "gpu-day.png is not drawn" in capsys.readouterr().err
    state["pieces"]["kernels"]["figures"]["device"] = state["pieces"]["training"]["figures"]["device"] = "Tesla T4"
    write_report(state, [], tmp_path)
    assert "Device: Tesla T4. The targets are meant for an H200." in (tmp_path / "gpu-day.md").read_text()


def test_pieces_are_shorter_than_ten_minutes_and_cover_the_targets() -> None:
    pieces = pieces_of_the_day()
    names = [piece.name for piece in pieces]
    assert all(piece.seconds < 600 for piece in pieces)
    assert len(set(names)) == len(names)
    assert {verdict.what for verdict in verdicts_of({"pieces": {}})} <= set(names)
    assert all(any("{results}" in argument for argument in piece.arguments) for piece in pieces)
