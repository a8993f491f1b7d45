"""Handouts: their commands and programs run, in the folder of a student who has solved everything."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from course.made import KIT, reference_files
from hybridnn.assignments.a8_scaling.solution import all_texts
from hybridnn.assignments.a8_scaling.submitted import CLAIMS, Submitted
from hybridnn.course.assignment import Assignment, Variant, assignment_packages, load_assignment
from hybridnn.course.verify import some_variants
from hybridnn.course.work_folder import HANDOUT, Manifest, start_files
from hybridnn.study.study_file import load_study
from mpi_runner.slowness import deadline

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
POINTS = re.compile(r"([\d.]+) of ([\d.]+) points")
PROGRAMS = {"hybridnn": [sys.executable, "-m", "hybridnn"], "python": [sys.executable]}


def _solved(assignment: Assignment, variant: Variant, folder: Path) -> str:
    """Write the folder of a student with the reference solutions, and return the handout."""
    manifest = Manifest(assignment=assignment.id, variant=dict(variant), modules=[KIT])
    solved = all_texts(variant) if assignment.texts else reference_files(assignment, variant)
    files = {**start_files(assignment, manifest), **solved}
    for name, text in files.items():
        (folder / name).write_text(text)
    return files[HANDOUT]


def _run(command: list[str], folder: Path, text: str = "") -> str:
    limit, environment = deadline(240), {**os.environ, "COLUMNS": "100"}
    run = subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, check=False, timeout=limit, env=environment
    )
    assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
    return run.stdout


def _watch(command: list[str], folder: Path) -> str:
    """Start a command that does not end, and stop it as a student does after its first points."""
    code = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code += "; runpy.run_module('hybridnn', run_name='__main__', alter_sys=True)"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", code, *command[3:]], cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        limit = threading.Timer(deadline(240), process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            found = next((line for line in process.stdout if POINTS.match(line)), "")
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait() in (0, 130)  # 130 if the signal comes before it watches
        finally:
            limit.cancel()
            process.kill()
    return found


def _run_line(line: str, folder: Path) -> None:
    words = shlex.split(line.removeprefix("$ "), comments=True)
    command = PROGRAMS[words[0]] + words[1:]
    if "--watch" in words:
        printed = _watch(command, folder)
    else:
        printed = _run(command, folder, "continue\n" * 100 if "debug" in words else "")
    if "check" in words:
        (points,) = [found.groups() for found in map(POINTS.match, printed.splitlines()) if found]
        assert points[0] == points[1]


def _check_toml(text: str, folder: Path) -> None:
    """The example of a study is one, and each of the claims too."""
    if "[[claims]]" in text:
        (claim,) = Submitted({CLAIMS: text}, {}).claims
        assert claim.quantity == "speed_up"
    else:
        (folder / "example.toml").write_text(text)
        assert load_study(folder / "example.toml").name == "rates"


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", assignment_packages())
def test_commands_and_programs_of_a_handout_run(name: str, number: int, tmp_path: Path) -> None:
    assignment = load_assignment(name)
    text = _solved(assignment, some_variants(assignment, 2)[number], tmp_path)
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("\n```") / 2
    assert any(language == "console" for language, _ in blocks)
    for language, body in blocks:
        if language == "console":
            for line in body.splitlines():
                assert line.startswith("$ ")
                _run_line(line, tmp_path)
        elif language == "python":
            _run([sys.executable, "-c", body], tmp_path)
        else:
            assert language == "toml"
            _check_toml(body, tmp_path)
