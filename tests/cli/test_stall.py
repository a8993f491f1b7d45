"""`hybridnn stall` on run folders with constructed stall files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hybridnn.diagnostics.stalls.state import JobState, RankState
from reference.command_line import Run
from reference.finished_runs import write_run
from reference.stalls import collective, progress, rank_state

ALL = tuple(range(4))


def waiting(rank: int) -> RankState:
    sums = progress("world", ALL, "allreduce (sum) of 800 bytes float64", entered=57)
    return rank_state(rank, 4, collective("allreduce", "world", ALL, 57), sums)


def asleep(rank: int) -> RankState:
    return rank_state(rank, 4, None, progress("world", ALL, entered=56), idle_seconds=7.25)


def write(folder: Path, *states: RankState, job: JobState | None = None) -> Path:
    stall = folder / "stall"
    stall.mkdir(parents=True)
    for state in states:
        (stall / f"rank-{state.rank}.json").write_text(json.dumps(asdict(state)))
    if job is not None:
        (stall / "job.json").write_text(json.dumps(asdict(job)))
    return folder


@pytest.fixture
def stalled_run(tmp_path: Path) -> Path:
    job = JobState(4, 60.0, ("a", "b", "c", "host n9, process 99"), "")
    return write(tmp_path / "run", waiting(0), waiting(1), asleep(2), waiting(3), job=job)


def test_table_and_diagnosis(run_hybridnn: Run, stalled_run: Path) -> None:
    code, out, err = run_hybridnn("stall", str(stalled_run))
    assert (code, err) == (0, "")
    call = "allreduce 57 of group world (ranks 0-3), 800 bytes float64"
    assert out.splitlines() == [
        "=== the job stood still: no rank finished anything for 60 s; the job was ended ===",
        "* rank 2 (host n1, process 4002) did not arrive: outside of communication, at slow.py:12 in on_step; "
        "ranks 0, 1, 3 wait in allreduce 57 of group world (ranks 0-3)",
        "",
        f"ranks    {'waits for':{len(call)}}  since  finished last  at",
        f"0, 1, 3  {call}  60 s   forward 3      hybridnn/training/engine.py:204 in _check",
        f"2        {'nothing: outside of communication':{len(call)}}  7.2 s  forward 3      slow.py:12 in on_step",
        "",
        f"States of all ranks: {stalled_run}/stall/rank-*.json; this report again: hybridnn stall {stalled_run}",
        "Where work of one rank is meant to take longer: announce it in a script, "
        '`with trainer.busy("plotting"): ...`,',
        "or set stall_seconds (output.stall_seconds in a settings file) higher, or to 0 for no watchdog.",
    ]


def test_a_rank_without_a_file_is_unresponsive(run_hybridnn: Run, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", waiting(0), waiting(1), waiting(2))
    code, out, _ = run_hybridnn("stall", str(folder))
    assert code == 0
    assert "no rank finished anything ===" in out
    assert "* rank 3 gave no sign: " in out
    assert "\n3      no sign" in out


def test_the_state_of_an_unresponsive_rank_is_ignored(run_hybridnn: Run, tmp_path: Path) -> None:
    """It answered once and was stopped then, so that the rank that ended the job listed it as unresponsive."""
    job = JobState(4, 60.0, ("a", "b", "c", "host n9, process 99"), "3")
    folder = write(tmp_path / "run", *map(waiting, ALL), job=job)
    code, out, _ = run_hybridnn("stall", str(folder))
    assert code == 0
    assert "* rank 3 (host n9, process 99) gave no sign: " in out


def test_json_has_the_findings_and_all_states(run_hybridnn: Run, stalled_run: Path) -> None:
    code, out, err = run_hybridnn("stall", str(stalled_run), "--format", "json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["stalled"]
    (finding,) = facts["findings"]
    assert (finding["kind"], finding["ranks"]) == ("outside", [2])
    assert [state["rank"] for state in facts["states"]] == [0, 1, 2, 3]
    assert facts["states"][0]["call"]["number"] == 57
    assert facts["job"]["limit"] == 60.0


def test_a_run_that_did_not_stall(run_hybridnn: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "fine")
    code, out, err = run_hybridnn("stall", str(folder))
    assert (code, err) == (0, "")
    assert out == f"{folder}: no stall was recorded in this run\n"
    _, out, _ = run_hybridnn("stall", str(folder), "--format", "json")
    assert json.loads(out) == {"stalled": False, "findings": [], "job": None, "states": []}


@pytest.mark.parametrize("folder", ["nothing", "."])
def test_a_folder_without_a_run_is_refused(run_hybridnn: Run, folder: str) -> None:
    code, out, err = run_hybridnn("stall", folder)
    assert (code, out) == (2, "")
    assert err == f"Error: {folder}: this folder holds no run of hybridnn\n"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:100], "EOF while parsing"),
        (lambda text: text.replace('"idle_seconds": 60.0', '"idle_seconds": "long"'), "idle_seconds: "),
        (lambda text: "{}", "rank: Field required"),
    ],
)
def test_a_damaged_file_is_named(
    run_hybridnn: Run, stalled_run: Path, damage: Callable[[str], str], words: str
) -> None:
    file = stalled_run / "stall" / "rank-1.json"
    file.write_text(damage(file.read_text()))
    code, out, err = run_hybridnn("stall", str(stalled_run))
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {file}: not the state of a rank: ")
    assert words in err
    assert err.count("\n") == 1


def test_hundreds_of_ranks_take_a_few_lines(run_hybridnn: Run, tmp_path: Path) -> None:
    everyone = range(300)
    call = collective("allreduce", "world", everyone, 3)
    states = [rank_state(rank, 300, call, progress("world", everyone, entered=3)) for rank in everyone]
    states[7] = replace(asleep(7), size=300)
    code, out, _ = run_hybridnn("stall", str(write(tmp_path / "big", *states)))
    assert code == 0
    assert len(out.splitlines()) == 10
    assert "\n0-6, 8-299  allreduce 3 of group world (ranks 0-299)" in out
