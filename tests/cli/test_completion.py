"""`--help` of every command, and completion in shells."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from hybridnn.cli.main import COMMANDS as LAZY_COMMANDS
from hybridnn.cli.main import parser, whole_parser
from hybridnn.config.settings import Settings
from hybridnn.data import catalogue
from hybridnn.nn.optimizers import optimizers
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.study_file import ready_studies
from hybridnn.utils.checks import OneOf
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
def test_the_script_of_a_shell_parses_and_is_installed(shell, tmp_path, complete) -> None:
    text = complete(_HYBRIDNN_COMPLETE=f"source_{shell}")
    assert f"_HYBRIDNN_COMPLETE=complete_{shell}" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([*CHECKS[shell], str(script)], capture_output=True, text=True, timeout=deadline(30))
    assert (done.returncode, done.stderr) == (0, "")
    # A shell becomes its last command.
    install = f"{shlex.quote(sys.executable)} -m hybridnn --install-completion; true"
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


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command without commands of its own, with its words."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
        return
    for name, child in inner.items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(whole_parser()))
WITHOUT = re.compile(r"\b(default|in place of|may be given|required|instead)\b", re.IGNORECASE)


def has_default(option: Any) -> bool:
    has_value = not (option.default is None or option.default is False or option.default == ())
    return has_value or isinstance(option.show_default, str)


def test_help_of_an_option_is_a_sentence_with_a_default() -> None:
    assert {("train",), ("data", "list"), ("study", "run"), ("course", "check")} <= set(COMMANDS)
    options = {
        (*path, option.opts[-1]): option
        for path, command in COMMANDS.items()
        for option in command.params
        if option.param_type_name == "option" and not getattr(option, "hidden", False)
    }
    assert len(options) > 100
    for words, option in options.items():
        text = option.help or ""
        assert re.fullmatch(r"[A-Z0-9].*[.)]", text, re.DOTALL), (words, text)
        assert "without," not in text, (words, text)
        assert not re.search(r"\([^)]*\(", text), (words, text)
        assert option.is_flag or option.required or has_default(option) or WITHOUT.search(text), (words, text)


def test_summaries_of_commands_are_those_of_their_own_help() -> None:
    found = {name: " ".join(command.help.split("\n\n")[0].split()) for name, command in parser().commands.items()}
    assert found == {name: entry.summary for name, entry in LAZY_COMMANDS.items()}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_of_a_command_is_a_sentence(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[path]
    first = (command.help or "").strip().split("\n\n")[0]
    assert re.fullmatch(r"[A-Z].*\.", first, re.DOTALL), first
    for argument in command.params:
        if argument.param_type_name == "argument":
            assert re.fullmatch(r"[A-Z].*\.", argument.help or "", re.DOTALL), (argument.name, argument.help)
    assert parser().main([*path, "--help"], prog_name="hybridnn", standalone_mode=False) == 0
    shown = capsys.readouterr().out
    assert parser().main([*path, "-h"], prog_name="hybridnn", standalone_mode=False) == 0
    assert capsys.readouterr().out == shown
    assert f"Usage: hybridnn {' '.join(path)} " in shown
    assert "<bool>" not in shown
    assert "[[" not in shown


def test_help_of_train_lists_methods() -> None:
    texts = {option.name: option.help for option in COMMANDS[("train",)].params}
    assert texts["method"].partition(": ")[2].partition(". (")[0].partition(" (")[0].split(", ") == list(METHODS)


def setting(name: str) -> tuple[Any, Any]:
    """Default of a setting, and its field."""
    section, key = name.split(".")
    value = getattr(Settings(), section)
    return getattr(value, key), type(value).model_fields.get(key) if hasattr(type(value), "model_fields") else None


def test_defaults_and_choices_of_train_are_those_of_the_settings() -> None:
    checked = 0
    for option in COMMANDS[("train",)].params:
        found = re.search(r"\(([a-z]+\.[a-z_]+)(?:; default: .*)?\)\.$", getattr(option, "help", None) or "")
        if found is None:
            continue
        default, field = setting(found[1])
        checked += 1
        assert not option.show_default  # it would be in brackets that are in brackets
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        assert default in (None, ()) or f"default: {shown})" in option.help, (option.name, default)
        choices: tuple[str, ...] = ()
        for item in getattr(field, "metadata", ()):
            choices = item.choices if isinstance(item, OneOf) else choices
        if get_origin(getattr(field, "annotation", None)) is Literal:
            choices = get_args(field.annotation)  # type: ignore[union-attr]
        assert all(re.search(rf"\b{choice}\b", option.help) for choice in choices), option.help
    assert checked >= 16
