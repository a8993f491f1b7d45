"""`--help` of every command: whole sentences, a default or what holds without the option, all choices, no `<bool>`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from hybridnn.cli.main import COMMANDS as LAZY_COMMANDS
from hybridnn.cli.main import parser, whole_parser
from hybridnn.config.settings import Settings
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.checks import OneOf


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
