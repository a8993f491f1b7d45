"""Handouts: their commands and programs run, in the folder of a student who has solved everything."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from course.tests.made import KIT, reference_files
from hybridnn.cli.main import main
from hybridnn.study.study_file import load_study
from hybridnn_course.assignment import Variant
from hybridnn_course.cli import student
from hybridnn_course.work_folder import HANDOUT, Manifest
from hybridnn_course_staff.assignment import Assignment, assignment_packages, load_assignment
from hybridnn_course_staff.handing_out import start_files
from hybridnn_course_staff.verify import some_variants
from mpi_runner.slowness import deadline

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
POINTS = re.compile(r"([\d.]+) of ([\d.]+) points")
SETTINGS = "[data]\nname = 'digits'\n[model]\nhidden = [32]\n"
PROGRAMS = {"hybridnn": [sys.executable, "-m", "hybridnn"], "python": [sys.executable]}


def _solved(assignment: Assignment, variant: Variant, folder: Path) -> str:
    """Write the folder of a student with the reference solutions, and return the handout."""
    manifest = Manifest(assignment=assignment.id, variant=dict(variant), modules=[KIT])
    own = {**reference_files(assignment, variant), **({"settings.toml": SETTINGS} if assignment.texts else {})}
    files = {**start_files(assignment, manifest), **{name: text.encode() for name, text in own.items()}}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files[HANDOUT].decode()


def _run(command: list[str], folder: Path) -> None:
    limit, environment = deadline(240), {**os.environ, "COLUMNS": "100"}
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit, env=environment
    )
    assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _run_line(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command in this process, unless it starts others; one that waits for changes is left."""
    words = shlex.split(line.removeprefix("$ "), comments=True)
    if words[0] != "hybridnn" or "-n" in words:
        _run(PROGRAMS[words[0]] + words[1:], folder)
        return
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("builtins.input", lambda _="": "continue")
        if "--watch" in words:
            patch.setattr(student, "time", SimpleNamespace(sleep=_leave))
        with pytest.raises(SystemExit, match="0"):
            main(words[1:])
    if "check" in words:
        printed = capsys.readouterr().out
        (points,) = [found.groups() for found in map(POINTS.match, printed.splitlines()) if found]
        assert points[0] == points[1]


def _check_toml(text: str, folder: Path) -> None:
    """The example of a study is one."""
    (folder / "example.toml").write_text(text)
    assert load_study(folder / "example.toml").keys.name == "rates"


@pytest.mark.slow
@pytest.mark.parametrize("name", assignment_packages())
def test_commands_and_programs_of_a_handout_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs in two variants, and its commands, which are the same in both."""
    assignment, commands = load_assignment(name), []
    for number, variant in enumerate(some_variants(assignment, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = _solved(assignment, variant, folder)
        blocks = BLOCK.findall(text)
        assert len(blocks) == text.count("\n```") / 2
        for language, body in blocks:
            if language == "python":
                _run([sys.executable, "-c", body], folder)
            elif language != "console":
                assert language == "toml"
                _check_toml(body, folder)
        commands.append([line for language, body in blocks if language == "console" for line in body.splitlines()])
    assert commands[0] == commands[1] != []
    for line in commands[0]:
        assert line.startswith("$ ")
        _run_line(line, folder, monkeypatch, capsys)
