"""`make gpu-day`: which pieces run, in which order, and what a call knows of earlier ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day, gpu_report
from benchmarks.gpu_day import pieces_of_the_day, read_state, run_day
from benchmarks.gpu_pieces import Piece
from benchmarks.gpu_report import verdicts_of
from hybridnn.errors import DataError
from mpi_runner.slowness import deadline

LONG = deadline(30)
GPU = "NVIDIA H200"


def written(name: str, figures: Any, code: int = 0) -> Piece:
    """A piece that writes its results and ends with an exit code."""
    text = f"import sys; open(sys.argv[1], 'w').write({json.dumps(figures)!r}); print('ran'); sys.exit({code})"
    return Piece(name, ("-c", text, "{results}"), LONG)


def outcomes(state: dict[str, Any], device: str = GPU) -> dict[str, str]:
    return {name: piece["outcome"] for name, piece in state["devices"][device].items()}


def test_a_day_goes_on_after_a_failure_and_continues_where_it_stopped(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    broken = Piece("broken", ("-c", f"open({str(runs)!r}, 'a').write('x'); raise ValueError('no such kernel')"), LONG)
    pieces = [broken, written("one", {"device": "GPU 1"})]
    state = run_day(pieces, tmp_path, GPU, commit="abc1")
    assert outcomes(state) == {"broken": "failed", "one": "done"}
    assert "no such kernel" in "".join(state["devices"][GPU]["broken"]["output"])
    assert state == read_state(tmp_path / "gpu-day.json")
    report = (tmp_path / "gpu-day.md").read_text()
    assert "| broken | failed |" in report
    assert "ValueError: no such kernel" in report
    # What is done does not run again; what was never tried precedes what failed.
    again = run_day([*pieces, written("two", {})], tmp_path, GPU, commit="abc2")
    assert again["devices"][GPU]["one"] == state["devices"][GPU]["one"]
    assert {name: piece["commit"] for name, piece in again["devices"][GPU].items()} == {
        "broken": "abc2",
        "one": "abc1",
        "two": "abc2",
    }
    assert "| abc1 |" in (tmp_path / "gpu-day.md").read_text()
    assert runs.read_text() == "xx"
    log = (tmp_path / "gpu-day.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("==")] == [
        "== broken",
        "== one",
        "== two",
        "== broken",
    ]


def test_a_call_starts_from_a_file_of_an_earlier_one_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    runs, folders = tmp_path / "runs", [tmp_path / name for name in ("first", "second")]
    text = f"import sys; open({str(runs)!r}, 'a').write('x'); open(sys.argv[1], 'w').write('{{}}')"
    pieces = [Piece("one", ("-c", text, "{results}"), LONG), written("two", {})]
    run_day(pieces[:1], folders[0], GPU, earlier=tmp_path / "none")
    earlier = folders[0] / "gpu-day.json"
    before = earlier.read_bytes()
    earlier.chmod(0o444)
    folders[0].chmod(0o555)
    state = run_day(pieces, folders[1], GPU, earlier=earlier)
    assert outcomes(state) == {"one": "done", "two": "done"}
    assert state == read_state(folders[1] / "gpu-day.json")
    assert "| one | done |" in (folders[1] / "gpu-day.md").read_text()
    assert runs.read_text() == "x"
    assert earlier.read_bytes() == before
    # In the same folder, its own file is the newer one.
    assert run_day(pieces, folders[1], GPU, earlier=tmp_path / "none")["devices"] == state["devices"]


def test_what_another_device_has_done_counts_for_it_alone(tmp_path: Path) -> None:
    run_day([written("one", {"n": 1}), written("two", {"n": 2})], tmp_path, "NVIDIA H100")
    state = run_day([written("one", {"n": 3})], tmp_path, GPU)
    figures = {name: {key: piece["figures"] for key, piece in of.items()} for name, of in state["devices"].items()}
    assert figures == {"NVIDIA H100": {"one": {"n": 1}, "two": {"n": 2}}, GPU: {"one": {"n": 3}}}
    report = (tmp_path / "gpu-day.md").read_text()
    assert [report.count(f"# Measurements on {name}\n") for name in ("NVIDIA H100", GPU)] == [1, 1]


def test_one_piece_can_be_repeated(tmp_path: Path) -> None:
    run_day([written("one", {"n": 1}), written("two", {"n": 1})], tmp_path, GPU)
    state = run_day([written("one", {"n": 2}), written("two", {"n": 2})], tmp_path, GPU, only=["two"])
    assert [piece["figures"]["n"] for piece in state["devices"][GPU].values()] == [1, 2]


def test_a_piece_without_its_tool_is_left_out_and_told_of(tmp_path: Path) -> None:
    piece = Piece("checked", ("-c", "raise OSError"), LONG, left_out="no checker on PATH")
    state = run_day([piece], tmp_path, GPU)
    assert outcomes(state) == {"checked": "left out"}
    report = (tmp_path / "gpu-day.md").read_text()
    assert "| checked | left out |" in report
    assert "no checker on PATH" in report


def test_the_day_goes_on_without_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no such font")

    monkeypatch.setattr(gpu_report, "write_report", fails)
    state = run_day([written("one", {}), written("two", {})], tmp_path, GPU)
    assert outcomes(state) == {"one": "done", "two": "done"}
    assert "no such font" in capsys.readouterr().err


def test_pieces_start_only_if_they_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_day, "GRACE", 0.0)
    pieces = [written(name, {}) for name in ("one", "two")]
    assert outcomes(run_day(pieces, tmp_path / "a", GPU, seconds=LONG)) == {}
    assert outcomes(run_day(pieces, tmp_path / "a", GPU, seconds=LONG * 9)) == {"one": "done", "two": "done"}


class Clock:
    """Time that passes only in pieces, which take as long as expected."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(gpu_day, "monotonic", lambda: self.now)
        monkeypatch.setattr(gpu_day, "run_piece", self.run)

    def run(self, piece: Piece, log: Path) -> dict[str, Any]:
        assert 0 < piece.expected < piece.seconds
        self.now += piece.expected
        return {"outcome": "done", "seconds": piece.expected, "date": "2026-01-02"}


def test_a_day_fits_into_half_an_hour_of_calls_of_less_than_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is started once, in two minutes; between two calls it waits for half a minute at most."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(gpu_day.shutil, "which", lambda name: name)
    pieces = pieces_of_the_day()
    folders = [tmp_path / str(number) for number in range(9)]
    total = 120.0
    for number, folder in enumerate(folders):
        before = clock.now
        state = run_day(pieces, folder, GPU, seconds=570, earlier=folders[number - 1] / "gpu-day.json")
        assert clock.now - before < 600
        assert len(state["devices"][GPU]) > number, "every call runs a piece"
        total += clock.now - before
        if len(outcomes(state)) == len(pieces):
            break
        total += 30
    assert set(outcomes(state)) == {piece.name for piece in pieces}
    assert total < 1800
    assert state["seconds"] == clock.now, "the time of all calls is known"


def test_no_piece_starts_that_exceeds_the_time_of_all_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pieces = Clock(monkeypatch), pieces_of_the_day()
    for _ in range(9):
        state = run_day(pieces, tmp_path, GPU, seconds=570, total_seconds=900)
    assert 900 - 310 < clock.now <= 900
    assert "tests of training, several ranks" not in outcomes(state)


def test_pieces_are_shorter_than_ten_minutes_and_cover_the_targets() -> None:
    pieces = pieces_of_the_day()
    names = [piece.name for piece in pieces]
    assert all(piece.seconds < 570 for piece in pieces)
    assert len(set(names)) == len(names)
    assert {verdict.what for verdict in verdicts_of({})} <= set(names)
    assert all(any("{results}" in argument for argument in piece.arguments) for piece in pieces)
    several = [name for name in names if "several ranks" in name]
    assert [piece.name for piece in pieces_of_the_day("no mpirun") if piece.left_out == "no mpirun"] == several
    assert names[-len(several) :] == several


def test_the_program_prints_its_report_and_begins_anew_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "require_device", lambda: GPU)
    monkeypatch.setattr(gpu_day, "mpi_problem", lambda: "")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "gpu-day.json").write_text("{")
    words = ["--fresh"], [], ["--fresh"], ["--only", "one", "--commit", "abc"], ["--only", "two"]
    for code, given, outcome, exit_code in zip(
        (0, 3, 3, 0, 0), words, ("done", "done", "failed", "done", ""), (0, 0, 1, 0, 2), strict=True
    ):
        monkeypatch.setattr(gpu_day, "pieces_of_the_day", lambda _, code=code: [written("one", {}, code)])
        monkeypatch.setattr(sys, "argv", ["gpu_day", "--results", str(tmp_path), *given])
        with pytest.raises(SystemExit) as ended:
            gpu_day.main()
        assert ended.value.code == exit_code
        printed = capsys.readouterr()
        assert f"| one | {outcome} |" in printed.out if outcome else "the pieces are one" in printed.err
    assert read_state(tmp_path / "gpu-day.json")["devices"][GPU]["one"]["commit"] == "abc"


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"devices": 3}', '{"devices": {"a": 3}}', '{"devices": {}, "seconds": "x"}'):
        (tmp_path / "gpu-day.json").write_text(text)
        with pytest.raises(DataError, match=r"gpu-day\.json is damaged"):
            run_day([], tmp_path, GPU)
