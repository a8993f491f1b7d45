"""Completion in shells: the scripts parse, and complete commands, options and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hybridnn.datasets import catalogue
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.study_file import ready_studies
from mpi_runner.slowness import deadline

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


def hybridnn(**variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hybridnn"],
        cwd=tempfile.gettempdir(),  # in a checkout, Python 3.10 would import its folder
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=deadline(30),
    )
    assert done.stderr == ""
    return done.stdout


def completions(line: str) -> list[str]:
    return hybridnn(
        _HYBRIDNN_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1)
    ).split()


@pytest.mark.parametrize("shell", CHECKS)
def test_the_script_of_a_shell_names_the_command_and_parses(shell: str, tmp_path: Path) -> None:
    text = hybridnn(_HYBRIDNN_COMPLETE=f"source_{shell}")
    assert f"_HYBRIDNN_COMPLETE=complete_{shell}" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([*CHECKS[shell], str(script)], capture_output=True, text=True, timeout=deadline(30))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/hybridnn.sh"),
        ("zsh", ".zfunc/_hybridnn"),
        ("fish", ".config/fish/completions/hybridnn.fish"),
    ],
)
def test_completion_is_installed_for_the_shell_of_the_command(shell: str, file: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    text = f"{sys.executable} -m hybridnn --install-completion; true"  # a shell becomes its last command
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    done = subprocess.run(
        [shell, "-c", text], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(30)
    )
    assert "completion installed in" in done.stdout, done.stderr
    assert "_HYBRIDNN_COMPLETE=complete" in (tmp_path / file).read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command_with_the_script(tmp_path: Path) -> None:
    """As readline calls the function that the script registers."""
    script = tmp_path / "completion"
    script.write_text(hybridnn(_HYBRIDNN_COMPLETE="source_bash"), encoding="utf-8")
    program = tmp_path / "hybridnn"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hybridnn "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    text = (
        f'source {script}; COMP_WORDS=(hybridnn eval); COMP_CWORD=1; _hybridnn_completion {program}; echo "$COMPREPLY"'
    )
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=deadline(30))
    assert (done.stdout, done.stderr) == ("evaluate\n", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hybridnn tr", {"train", "trace"}),
        ("hybridnn study su", {"submit"}),
        ("hybridnn train --me", {"--method"}),
        ("hybridnn schedule --format ", {"text", "json", "svg", "png", "pdf"}),
        ("hybridnn schedule ", set(METHODS)),
        ("hybridnn train --method pipe", {name for name in METHODS if name.startswith("pipe")}),
        ("hybridnn train --data ", set(catalogue())),
        ("hybridnn data info mn", {"mnist"}),
        ("hybridnn study run ", set(ready_studies())),
    ],
)
def test_commands_options_and_names_are_completed(line: str, expected: set[str]) -> None:
    assert expected
    assert set(completions(line)) == expected
