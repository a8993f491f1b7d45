"""`hybridnn report` on run folders with constructed stall files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from hybridnn.diagnostics.rank_state import JobState, RankState
from reference.command_line import Run, error_line
from reference.finished_runs import write_run
from reference.stalls import collective, progress, rank_state

ALL = tuple(range(4))


def waiting(rank: int) -> RankState:
    sums = progress("world", ALL, "allreduce (sum) of 800 bytes float64", entered=57)
    return rank_state(rank, 4, collective("allreduce", "world", ALL, 57), sums)


def asleep(rank: int) -> RankState:
    return rank_state(rank, 4, None, progress("world", ALL, entered=56), idle_seconds=7.25)


def write(folder: Path, *states: RankState, unresponsive: str | None = None) -> Path:
    """Write the states, and the record of the job where the ranks that do not answer are given."""
    stall = folder / "stall"
    stall.mkdir(parents=True)
    for state in states:
        (stall / f"rank-{state.rank}.json").write_text(json.dumps(asdict(state)))
    if unresponsive is not None:
        job = JobState(4, 60.0, ("a", "b", "c", "host n9, process 99"), unresponsive)
        (stall / "job.json").write_text(json.dumps(asdict(job)))
    return folder


@pytest.fixture
def stalled_run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", waiting(0), waiting(1), asleep(2), waiting(3), unresponsive="")


def test_report_and_json_have_the_findings_and_all_states(run_hybridnn: Run, stalled_run: Path) -> None:
    code, out, err = run_hybridnn("report", str(stalled_run))
    assert (code, err) == (0, "")
    call = "allreduce 57 of group world (ranks 0-3), 800 bytes float64"
    assert out.splitlines()[:6] == [
        "=== the job stood still: no rank finished anything for 60 s; the job was ended ===",
        "* rank 2 (host n1, process 4002) did not arrive: outside of communication, at slow.py:12 in on_step; "
        "ranks 0, 1, 3 wait in allreduce 57 of group world (ranks 0-3)",
        "",
        f"ranks    {'waits for':{len(call)}}  since  finished last  at",
        f"0, 1, 3  {call}  60 s   forward 3      hybridnn/training/engine.py:204 in _check",
        f"2        {'nothing: outside of communication':{len(call)}}  7.2 s  forward 3      slow.py:12 in on_step",
    ]
    assert f"{stalled_run}/stall/rank-*.json" in out
    facts = json.loads(run_hybridnn("report", str(stalled_run), "--format", "json")[1])
    facts = facts["stall"]
    (finding,) = facts["findings"]
    assert (finding["kind"], finding["ranks"]) == ("outside", [2])
    assert [state["rank"] for state in facts["states"]] == [0, 1, 2, 3]
    assert (facts["states"][0]["call"]["number"], facts["job"]["limit"]) == (57, 60.0)


def test_a_rank_without_a_file_or_listed_as_unresponsive_gave_no_sign(run_hybridnn: Run, tmp_path: Path) -> None:
    """The state of a rank that was stopped after it had answered is ignored."""
    missing = write(tmp_path / "missing", *map(waiting, range(3)))
    listed = write(tmp_path / "listed", *map(waiting, ALL), unresponsive="3")
    for folder, rank in ((missing, "rank 3"), (listed, "rank 3 (host n9, process 99)")):
        code, out, _ = run_hybridnn("report", str(folder))
        assert (code, f"* {rank} gave no sign: " in out) == (0, True)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:100], "EOF while parsing"),
        (lambda text: text.replace('"idle_seconds": 60.0', '"idle_seconds": "long"'), "idle_seconds: "),
        (lambda text: "{}", "rank: is missing"),
    ],
)
def test_a_damaged_file_is_named(
    run_hybridnn: Run, stalled_run: Path, damage: Callable[[str], str], words: str
) -> None:
    file = stalled_run / "stall" / "rank-1.json"
    file.write_text(damage(file.read_text()))
    line = error_line(run_hybridnn("report", str(stalled_run)))
    assert line.startswith(f"Error: {file}: ")
    assert words in line


def test_a_run_that_finished_after_a_stall_has_the_figures_too(run_hybridnn: Run, stalled_run: Path) -> None:
    write_run(stalled_run)
    out = run_hybridnn("report", str(stalled_run))[1]
    assert out.startswith("=== the job stood still")
    assert "limited by: " in out
