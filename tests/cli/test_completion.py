"""Completion in shells: the scripts parse, and complete commands, options and names."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.data import catalogue
from hybridnn.nn.optimizers import optimizers
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.study_file import ready_studies
from mpi_runner.slowness import deadline
from reference.command_line import Run

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
FILES = {
    "bash": ".bash_completions/hybridnn.sh",
    "zsh": ".zfunc/_hybridnn",
    "fish": ".config/fish/completions/hybridnn.fish",
}


@pytest.fixture
def complete(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run ``hybridnn`` as the completion of a shell does, with these variables; returns its output."""

    def run(**variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        _, out, err = run_hybridnn()
        assert err == ""
        return out

    return run


@pytest.mark.parametrize("shell", CHECKS)
def test_the_script_of_a_shell_parses_and_is_installed(
    shell: str, tmp_path: Path, complete: Callable[..., str]
) -> None:
    text = complete(_HYBRIDNN_COMPLETE=f"source_{shell}")
    assert f"_HYBRIDNN_COMPLETE=complete_{shell}" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([*CHECKS[shell], str(script)], capture_output=True, text=True, timeout=deadline(30))
    assert (done.returncode, done.stderr) == (0, "")
    install = (
        f"{shlex.quote(sys.executable)} -m hybridnn --install-completion; true"  # a shell becomes its last command
    )
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    del environment["_HYBRIDNN_COMPLETE"]
    done = subprocess.run(
        [shell, "-c", install], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(30)
    )
    assert "completion installed in" in done.stdout, done.stderr
    installed = (tmp_path / FILES[shell]).read_text(encoding="utf-8")
    assert "_HYBRIDNN_COMPLETE=complete" in installed
    assert ("compopt -o nospace" in installed) == (shell == "bash")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command_with_the_script(tmp_path: Path, complete: Callable[..., str]) -> None:
    """As readline calls the function that the script registers."""
    script = tmp_path / "completion"
    script.write_text(complete(_HYBRIDNN_COMPLETE="source_bash"), encoding="utf-8")
    program = tmp_path / "hybridnn"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hybridnn "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    words = "COMP_WORDS=(hybridnn eval); COMP_CWORD=1"
    text = f'source "{script}"; {words}; _hybridnn_completion "{program}"; echo "$COMPREPLY"'
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
        ("hybridnn train --optimizer ", {kind.name for kind in optimizers()}),
        ("hybridnn plan --machine clu", {"cluster-1024"}),
        ("hybridnn settings training.ba", {"training.batch_size"}),
        ("hybridnn train --set schedule.m", {"schedule.milestones="}),
        ("hybridnn train --set device.name = ", {"auto", "cpu", "gpu"}),
        (
            "hybridnn train --set data.name = mnist --set parallel.method = pipedream-",
            {"pipedream-vsync", "pipedream-2bw"},
        ),
    ],
)
def test_commands_options_and_names_are_completed(line: str, expected: set[str], complete: Callable[..., str]) -> None:
    words = line.replace(" ", "\n")  # bash ends words at "=", too
    word = str(words.count("\n"))
    assert set(complete(_HYBRIDNN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=word).split()) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_adds_no_blank_after_the_key_of_a_setting(tmp_path: Path, complete: Callable[..., str]) -> None:
    script = tmp_path / "completion"
    script.write_text(complete(_HYBRIDNN_COMPLETE="source_bash"), encoding="utf-8")
    for completion, option in (("schedule.milestones=", "-o nospace\n"), ("train", "")):
        program = (
            f'env() {{ echo {completion}; }}; compopt() {{ echo "$@"; }}; source "{script}"; _hybridnn_completion x'
        )
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=deadline(30))
        assert (done.stdout, done.stderr) == (option, "")


def test_values_of_a_setting_are_completed_where_it_is_one_word(complete: Callable[..., str]) -> None:
    asked = {"_HYBRIDNN_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    text = complete(**asked, _TYPER_COMPLETE_ARGS="hybridnn train --set model.activation=si")
    assert text.split() == ["model.activation=sigmoid"]
