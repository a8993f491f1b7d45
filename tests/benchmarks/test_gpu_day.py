"""`make gpu-day`: what runs, what is kept of it, how another call continues, and what it needs on the machine."""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks import gpu_day, gpu_pieces
from benchmarks.gpu_day import pieces_of_the_day, read_state, required_packages, run_day
from benchmarks.gpu_pieces import Piece, run_piece
from benchmarks.gpu_report import NOT_MEASURED, verdicts_of, write_report
from mpi_runner.slowness import deadline, wait_until

ROOT = Path(__file__).parents[2]
GPU = "NVIDIA H200"
ONE, TWO, BROKEN = (Piece(name, ("{results}",), 100, 10) for name in ("one", "two", "broken"))


class Clock:
    """Stands in for the programs of the pieces: each takes the expected time, and only that time passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ran = 0.0, list[str]()
        monkeypatch.setattr(gpu_day, "monotonic", lambda: self.now)
        monkeypatch.setattr(gpu_day, "run_piece", self.run)

    def run(self, piece: Piece, log: Path) -> dict[str, Any]:
        assert 0 < piece.expected < piece.seconds
        self.now += piece.expected
        self.ran.append(piece.name)
        end = {"outcome": "failed", "output": ["no such kernel"]} if piece is BROKEN else {"outcome": "done"}
        return {**end, "seconds": piece.expected, "date": "2026-01-02", "figures": {"run": len(self.ran)}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def outcomes(state: dict[str, Any], device: str = GPU) -> dict[str, str]:
    return {name: piece["outcome"] for name, piece in state["devices"][device].items()}


def test_a_day_goes_on_after_a_failure_and_continues_where_it_stopped(tmp_path: Path, clock: Clock) -> None:
    checked = Piece("checked", (), 1, left_out="no checker on PATH")
    state = run_day([BROKEN, checked, ONE], tmp_path, GPU, commit="abc1")
    assert outcomes(state) == {"broken": "failed", "checked": "left out", "one": "done"}
    assert state == read_state(tmp_path / "gpu-day.json")
    report = (tmp_path / "gpu-day.md").read_text()
    assert "| broken | failed |" in report
    assert "no such kernel" in report
    assert "no checker on PATH" in report
    # What is done does not run again; what was never tried precedes what failed.
    again = run_day([BROKEN, ONE, TWO], tmp_path, GPU, commit="abc2")
    assert clock.ran == ["broken", "one", "two", "broken"]
    commits = {name: piece["commit"] for name, piece in again["devices"][GPU].items() if name != "checked"}
    assert commits == {"broken": "abc2", "one": "abc1", "two": "abc2"}
    assert "| abc1 |" in (tmp_path / "gpu-day.md").read_text()
    # What a device has done counts for it alone; what is asked for is repeated.
    run_day([ONE], tmp_path, "NVIDIA H100")
    repeated = run_day([ONE, TWO], tmp_path, GPU, only=["two"])
    assert clock.ran[4:] == ["one", "two"]
    assert repeated["devices"]["NVIDIA H100"]["one"]["figures"] == {"run": 5}
    assert repeated["devices"][GPU]["one"] == state["devices"][GPU]["one"]
    assert "# Measurements on NVIDIA H100\n" in (tmp_path / "gpu-day.md").read_text()


def test_pieces_cover_the_targets() -> None:
    pieces = pieces_of_the_day("no mpirun")
    assert all(piece.seconds < 570 for piece in pieces)
    assert {verdict.what for verdict in verdicts_of({})} <= {piece.name for piece in pieces}
    assert all(any("{results}" in argument for argument in piece.arguments) for piece in pieces)
    assert [piece.name for piece in pieces[:3]] == ["tests of kernels", "tests of graphs", "memcheck of graphs"]
    several = ["several ranks" in piece.name for piece in pieces]
    assert several == sorted(several) == [piece.left_out == "no mpirun" for piece in pieces]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_piece_ends_at_its_limit_and_leaves_its_results_its_stack_and_no_child(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gpu_pieces, "GRACE", 0.5)
    text = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], 'w').write('{"device": 1}')
print('child', subprocess.Popen(['sleep', '600']).pid)
def waits_for_ever():
    time.sleep(600)
waits_for_ever()"""
    found = run_piece(Piece("slow", ("-c", text, "{results}"), deadline(1)), tmp_path / "log")
    assert (found["outcome"], found["figures"]) == ("out of time", {"device": 1})
    printed = "\n".join(found["output"])
    assert "in waits_for_ever" in printed
    child = int(re.findall(r"child (\d+)", printed)[0])
    wait_until(lambda: not runs(child), 20)


def test_the_report_has_verdicts_tables_and_a_chart(tmp_path, monkeypatch, capsys) -> None:
    case = "4-64-64-64-1"
    ratios = {f"{name}{end}": 2.0 for name in ("ratio", "ratio_compiled") for end in ("", "_min", "_max", "_plain")}
    whole = {"case": case, "precision": "fp32", "batch_size": 1, "our_samples_per_second": 2.0, **ratios}
    part = {"case": case, "precision": "TF32", "batch_size": 1, "errors": {"compiled": "RuntimeError: no\ncompiler"}}
    tests = {"passed": 3, "skipped": {}, "failed": [], "errors": ["c"]}
    about = {"seconds": 1.0, "date": "2026-01-01", "commit": "abc"}
    pieces = {
        "training": {"outcome": "done", "figures": {"training": [whole, part]}, **about},
        "tests of kernels": {"outcome": "failed", "figures": tests, **about},
        "tests of training": {"outcome": "failed", "figures": tests | {"failed": ["a", "b"]}, **about},
    }
    verdicts = [one.verdict for one in verdicts_of(pieces) if one.what == f"{case}, fp32"]
    assert verdicts == ["met, 82% above", "missed by 33.3%", "met, 100% above"]
    of_tests = [one.verdict for one in verdicts_of(pieces) if one.what.startswith("tests of")]
    assert of_tests == [f"{NOT_MEASURED}: failed", "missed by 2 tests", NOT_MEASURED]
    write_report({"devices": {GPU: pieces}}, ["training", "later"], tmp_path)
    for line in (
        f"| {case}, batch 1, fp32 | 2 |  | 2.00 (2.00-2.00) | 2.00 | 2.00 |  |  |  |  |  |",
        f"* {case}, TF32, compiled: RuntimeError: no compiler",
        "| training | done | 1 | 2026-01-01 | abc |",
        "| later | not run |  |  |  |",
    ):
        assert f"\n{line}\n" in (tmp_path / "gpu-day.md").read_text()
    assert (tmp_path / "gpu-day.png").read_bytes().startswith(b"\x89PNG")
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    write_report({"devices": {GPU: pieces}}, [], tmp_path)
    assert "gpu-day.png is not drawn" in capsys.readouterr().err


TREE = ("Makefile", "hybridnn", "datasets", "hpc_jobs", "conftest.py", "tests", "benchmarks")
LEFT_OUT = "PYTHON", "MPI4PY", "LD_", "MAKE", "MFLAGS"  # the last ones are of a make that runs the tests

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def with_requirements(names: Iterable[str]) -> set[str]:
    """Packages with all that they require, as pip would install them."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            required = map(Requirement, metadata.requires(name) or ())
            waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tree, and an interpreter that has only the required packages."""
    folder = tmp_path_factory.mktemp("bare")
    for name in TREE:
        (folder / name).symlink_to(ROOT / name)
    venv.create(folder / "env", symlinks=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    for name in with_requirements([*required_packages(), "torch"]):
        tops = {file.parts[0] for file in metadata.files(name) or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops - {link.name for link in site.iterdir()}:
            (site / top).symlink_to(metadata.distribution(name).locate_file(top))
    assert not (site / "hypothesis").exists()
    return folder


def run(folder: Path, command: Sequence[str], **changes: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    environment = inherited | {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""} | changes
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=deadline(120))


def make(folder: Path, target: str, arguments: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return run(folder, ["make", target, f"PYTHON={folder}/env/bin/python", f"ARGS={arguments}"], **changes)


@needs_make
def test_the_tests_of_a_gpu_are_collected_and_without_one_skipped(bare: Path) -> None:
    done = make(bare, "test-gpu", "-q -p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("kernels", "training", "transports"):
        assert f"test_gpu_{name}.py" in done.stdout
    assert "a GPU was asked for" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert (" skipped" in last, "deselected" in last) == (True, False)
