"""Parts of the site that are generated from the package, as Markdown: settings, command line, table of algorithms."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from typer.models import ArgumentInfo

__all__ = ["MARKERS", "Setting", "algorithms", "command_line", "settings", "settings_table"]

SETTINGS_PAGE = Path(__file__).resolve().parent / "use" / "settings.md"
COMMENT = re.compile(r"^(?:# )?(?P<key>\w+) = .*? +# (?P<text>.*)$|^(?:# )?\[(?P<section>[\w.]+)\]")
CHOICES = re.compile(r'; "\w[\w", -]*$')
"""Other values at the end of a comment, which the table has in a column of its own."""
ATTRIBUTE = re.compile(r"^(?P<names>\w+(?:, \w+)*)(?: : .*)?\n(?P<text>(?:    .*\n?)+)", re.MULTILINE)
CODE = re.compile(r"``(.+?)``|`(.+?)`")


class Setting:
    """A setting of a run.

    Attributes
    ----------
    name : str
        With its section: ``training.epochs``.
    allowed, default, description : str
        As Markdown.
    """

    def __init__(self, name: str, allowed: str, default: str, description: str) -> None:
        self.name, self.allowed, self.default, self.description = name, allowed, default, description


def settings() -> dict[str, list[Setting]]:
    """The settings of every section, from the pydantic models."""
    from hybridnn.config.settings import Settings

    return {name: list(_section(name, field.annotation)) for name, field in Settings.model_fields.items()}


def _section(name: str, model: Any) -> Iterator[Setting]:
    schema = model.model_json_schema()
    attributes = {f"{name}.{key}": text for key, text in _attributes(model).items()}
    described = _comments() | {key: text for key, text in attributes.items() if not text.startswith("As for")}
    for key, property_ in schema["properties"].items():
        field = model.model_fields[key].annotation
        if hasattr(field, "model_fields"):
            yield from _section(f"{name}.{key}", field)
            continue
        default = property_.get("default")
        text = "" if default is None or default == [] else f"`{_toml(default)}`"
        yield Setting(f"{name}.{key}", _allowed(key, property_), text, described.get(f"{name}.{key}", ""))


def _attributes(model: Any) -> dict[str, str]:
    """Descriptions of the section "Attributes" of a docstring."""
    _, _, attributes = (inspect.getdoc(model) or "").partition("Attributes\n----------\n")
    found = {}
    for entry in ATTRIBUTE.finditer(attributes):
        text = " ".join(line.strip() for line in entry["text"].splitlines())
        found |= dict.fromkeys(entry["names"].split(", "), _code(text))
    return found


def _comments() -> dict[str, str]:
    """The comments behind the settings of the page of settings, for settings without another description."""
    found, section = {}, ""
    for line in SETTINGS_PAGE.read_text(encoding="utf-8").splitlines():
        if match := COMMENT.match(line):
            if match["section"]:
                section = match["section"]
            else:
                text = CHOICES.sub("", match["text"])
                found[f"{section}.{match['key']}"] = f"{text[0].upper()}{text[1:]}."
    return found


def _allowed(key: str, property_: Mapping[str, Any]) -> str:
    """Type and range of a setting, from its JSON schema."""
    from hybridnn.pipeline.schedules.methods import METHODS

    special = {
        "method": ", ".join(f"`{_toml(name)}`" for name in METHODS),
        "partition": '`"uniform"`, `"profile"`, list of layer counts',
        "overlap": '`"auto"`, `true`, `false`',
        "shared_replicas": '`"auto"`, `true`, `false`',
        "stages": "list of tables with `batch` and `model`",
    }
    if key in special:
        return special[key]
    choices = [choice for choice in property_.get("anyOf", [property_]) if choice.get("type") != "null"]
    return " or ".join(_choice(choice) for choice in choices)


def _choice(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{_toml(value)}`" for value in schema["enum"])
    if schema["type"] == "array":
        (items, count) = (schema["prefixItems"][0], schema["maxItems"]) if "prefixItems" in schema else (None, None)
        return f"{count} × {_choice(items)}" if items else f"list of {_choice(schema['items'])}"
    name = {"boolean": "`true`, `false`", "integer": "integer", "number": "number", "string": "text"}[schema["type"]]
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in signs.items() if schema.get(bound, 1e18) < 1e18]
    return " ".join([name, ", ".join(bounds)]).strip()


def _toml(value: object) -> str:
    return json.dumps(value)


def settings_table() -> str:
    """A table for every section of the settings."""
    parts = []
    for section, rows in settings().items():
        parts += [f"## [{section}]", "| setting | allowed | default | description |\n|---|---|---|---|"]
        parts[-1] += "".join(
            f"\n| `{row.name}` | {row.allowed} | {row.default} | {row.description} |".replace("\\|", "|")
            for row in rows
        )
    return "\n\n".join(parts)


def command_line() -> str:
    """Every command with its arguments and options."""
    from hybridnn.cli.main import app

    return "\n\n".join(_commands("hybridnn", app))


def _commands(name: str, app: Any) -> Iterator[str]:
    for command in app.registered_commands:
        yield from _command(f"{name} {command.name or command.callback.__name__.replace('_', '-')}", command.callback)
    for group in app.registered_groups:
        yield from _commands(f"{name} {group.name}", group.typer_instance)


def _command(name: str, callback: Callable[..., None]) -> Iterator[str]:
    rows, arguments = [], []
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        value = info.metavar or " or ".join(_values(kind))
        default = "" if parameter.default in (parameter.empty, None, False) else parameter.default
        if isinstance(info, ArgumentInfo):
            arguments.append(value if parameter.default is parameter.empty or value[0] == "[" else f"[{value}]")
            names, value = f"`{arguments[-1]}`", ""
        else:
            # In Annotated, Typer stores the first name of an option as its default.
            given = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
            names = ", ".join(f"`{name}`" for name in given or [f"--{parameter.name.replace('_', '-')}"])
            default = "required" if parameter.default is parameter.empty else default
        cells = [names, value, str(getattr(default, "value", default)), info.help]
        rows.append(f"| {' | '.join(map(_words, cells))} |")
    yield f"## {name}\n\n{_words((inspect.getdoc(callback) or '').partition(chr(10) * 2)[0])}"
    yield f"```text\n{' '.join([name, '[OPTIONS]', *arguments])}\n```"
    if rows:
        yield "| argument or option | value | default | description |\n|---|---|---|---|\n" + "\n".join(rows)


def _values(kind: Any) -> Iterator[str]:
    """What an option without a name for its value accepts: the values of an enumeration, nothing for a flag."""
    for choice in get_args(kind) or (kind,):
        if inspect.isclass(choice) and issubclass(choice, Enum):
            yield ", ".join(member.value for member in choice)
        elif choice in (int, float, str, Path):
            yield {int: "N", float: "X", str: "TEXT", Path: "PATH"}[choice]


def algorithms() -> str:
    """The table of algorithms in the docstring of `hybridnn.parallel`, with the text around it."""
    import hybridnn.parallel

    text = hybridnn.parallel.__doc__ or ""
    rule = re.compile(r"^=[= ]+$\n", re.MULTILINE)
    before, heads, rows, after = rule.split(text)
    starts = [column.start() for column in re.finditer(r"=+", rule.findall(text)[0])]
    columns = [slice(start, end) for start, end in pairwise([*starts, None])]
    lines = [[_code(line[column]).strip() for column in columns] for line in (heads + rows).splitlines()]
    lines.insert(1, ["---"] * len(columns))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([_code(before.partition("\n\n")[2].strip()), table, _code(after.strip())])


def _code(text: str) -> str:
    """Text of a docstring with the marks of code in Markdown."""
    return CODE.sub(lambda code: f"`{code[1] or code[2]}`", text)


def _words(text: str | None) -> str:
    """A help text on one line, as Markdown in a table."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


MARKERS = {"settings": settings_table, "command-line": command_line, "algorithms": algorithms}
"""What a line ``<!-- generated: NAME -->`` of a page is replaced by."""
