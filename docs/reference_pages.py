"""Parts of the site that are generated from the package, as Markdown: settings, study files, commands, algorithms."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, get_args

from typer.models import ArgumentInfo

__all__ = [
    "ANIMATIONS",
    "MARKERS",
    "Setting",
    "algorithms",
    "animation",
    "command_line",
    "settings",
    "settings_table",
    "statement_keys",
    "study_keys",
    "study_table",
]

SETTINGS_PAGE = Path(__file__).resolve().parent / "use" / "settings.md"
COMMENT = re.compile(r"^(?:# )?(?P<key>\w+) = .*? +# (?P<text>.*)$|^(?:# )?\[(?P<section>[\w.]+)\]")
CHOICES = re.compile(r'; "\w[\w", -]*$')
"""Other values at the end of a comment, which the table has in a column of its own."""
UNLIKELY = "?"
"""A text that no setting accepts which does not accept every text."""
ANIMATIONS = {
    "pictures/animations/1f1b.html": {"microbatches": 8},
    "pictures/animations/pipedream.html": {"minibatches": 8},
    "pictures/animations/spectrain.html": {"minibatches": 8},
}
"""Pages that play a schedule of four stages, by their place in the site."""
CODE = re.compile(r"``(.+?)``|`(.+?)`")


@dataclass(frozen=True)
class Setting:
    """A setting of a run, or a key of a study file.

    Attributes
    ----------
    name : str
        With its section: ``training.epochs``.
    allowed, default, description : str
        As Markdown.
    """

    name: str
    allowed: str
    default: str
    description: str


def settings() -> list[Setting]:
    """All settings: names, allowed values and defaults by the program, descriptions of the page of settings."""
    from hybridnn.config.settings import settings_from
    from hybridnn.utils.settings_models import by_dotted_name

    comments = _comments()
    rows: dict[str, Setting] = {}
    for variant, values in _variants():
        for name, default in by_dotted_name(settings_from(values).model_dump()).items():
            is_given = name.rpartition(".")[2] in values.get(name.partition(".")[0], {})
            shown = "" if default in (None, ()) or (is_given and variant) else f"`{json.dumps(default)}`"
            known = rows.get(name)
            if known is None:
                rows[name] = Setting(name, _allowed(name, values), shown, comments.get(name, ""))
            elif name.endswith(".name") or shown in known.default:
                continue
            else:
                rows[name] = replace(known, default=f"{known.default}; {variant}: {shown}".removeprefix("; "))
    order = list(dict.fromkeys(name.rpartition(".")[0] for name in rows))
    return sorted(rows.values(), key=lambda row: order.index(row.name.rpartition(".")[0]))


def _variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that together have every key: those without any value, and those with each optimizer and schedule."""
    from hybridnn.nn.learning_rates import SCHEDULES
    from hybridnn.nn.optimizers import OPTIMIZERS

    needed = {"step": {"milestones": [1]}, "warmup-linear": {"warmup_epochs": 1}}
    yield "", {}
    for optimizer in OPTIMIZERS:
        yield optimizer.name, {"optimizer": {"name": optimizer.name}}
    for schedule in SCHEDULES:
        yield schedule.name, {"schedule": {"name": schedule.name, **needed.get(schedule.name, {})}}


def _allowed(name: str, values: Mapping[str, Any]) -> str:
    """What the program names as allowed when it refuses wrong values of a setting."""
    texts = _refusals(name, values, lambda value: value)
    if "a list" in texts:
        elements = ", ".join(_refusals(name, values, lambda value: [value]))
        texts = [f"a list of {elements}" if elements.endswith("numbers") else f"a list; each element {elements}"]
    return ", ".join(texts).replace("'", "`")


def _refusals(name: str, values: Mapping[str, Any], given: Callable[[object], object]) -> list[str]:
    first = _refusal(name, given(UNLIKELY), values)
    first = "" if "does not belong to" in first else first
    tried: tuple[object, ...] = (-(10**9), 10**30) if "number" in first else () if first else (5, True)
    texts = [first, *(_refusal(name, given(value), values) for value in tried)]
    around = r"^.*?Allowed are |^must be (one of )?|, as in .*$| \(and \d+ more\)$| = 10$"
    texts = [re.sub(around, "", text) for text in texts]
    return list(dict.fromkeys(text for text in texts if text and "does not belong to" not in text))


def _refusal(name: str, value: object, values: Mapping[str, Any]) -> str:
    from hybridnn.config.settings import settings_from
    from hybridnn.errors import SettingError

    section, *path, key = name.split(".")
    inner: dict[str, Any] = {key: value}
    for part in reversed(path):
        inner = {part: inner}
    base = {"name": "synthetic"} if path else {"file": "a.csv"} if name in ("data.targets", "data.inputs") else {}
    try:
        settings_from({**values, section: {**values.get(section, base), **inner}})
    except SettingError as error:
        return error.allowed if error.setting.partition("[")[0] == name else ""
    return ""


def _comments() -> dict[str, str]:
    """The comments behind the settings in the file of the page of settings."""
    found, section = {}, ""
    for line in SETTINGS_PAGE.read_text(encoding="utf-8").splitlines():
        if match := COMMENT.match(line):
            if match["section"]:
                section = match["section"]
            else:
                text = CHOICES.sub("", match["text"])
                found[f"{section}.{match['key']}"] = f"{text[0].upper()}{text[1:]}."
    return found


def settings_table() -> str:
    """A table for every section of the settings."""
    parts = []
    for section, rows in groupby(settings(), lambda row: row.name.rpartition(".")[0]):
        lines = ["| setting | allowed | default | description |", "|---|---|---|---|"]
        lines += [f"| `{row.name}` | {row.allowed} | {row.default} | {row.description} |" for row in rows]
        parts += [f"## [{section}]", "\n".join(lines)]
    return "\n\n".join(parts)


def study_keys() -> list[Setting]:
    """All keys of a study file, by the schema that checks it; ``NAME`` stands for a name and ``[]`` for elements."""
    from hybridnn.study.study_file import StudyFile

    return _keys_of(StudyFile.model_json_schema())


def statement_keys() -> list[Setting]:
    """The keys of a study file that hybridnn-papers checks."""
    from hybridnn_papers.statements import Conclusions

    return _keys_of(Conclusions.model_json_schema())


def _keys_of(schema: Mapping[str, Any]) -> list[Setting]:
    return list(_study_rows("", schema, schema.get("$defs", {}), set()))


def _study_rows(
    prefix: str, section: Mapping[str, Any], models: Mapping[str, Any], shown_models: set[str]
) -> Iterator[Setting]:
    for key, field in section["properties"].items():
        default = field.get("default")
        shown = "required" if key in section.get("required", ()) else f"`{json.dumps(default)}`" if default else ""
        allowed = " or ".join(dict.fromkeys(_study_values(field, models)))
        yield Setting(prefix + key, allowed, shown, field.get("description", ""))
        for suffix, name in _models_in(field):
            if name not in shown_models:  # the keys of [reduced] that are those of the file have the same models
                shown_models.add(name)
                yield from _study_rows(f"{prefix}{key}{suffix}.", models[name], models, shown_models)


def _models_in(field: Mapping[str, Any], suffix: str = "") -> Iterator[tuple[str, str]]:
    """Names of the models of a key's value, or of its elements, and what stands between their keys and the key."""
    if reference := field.get("$ref"):
        yield suffix, reference.rpartition("/")[2]
    for choice in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _models_in(choice, suffix)
    for inner, between in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(field.get(inner), dict):
            yield from _models_in(field[inner], suffix + between)


def _study_values(field: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[str]:
    """What a key accepts, as text."""
    if "enum" in field or "const" in field:
        yield from (f"`{json.dumps(value)}`" for value in field.get("enum", [field.get("const")]))
    elif choices := [*field.get("anyOf", ()), *field.get("oneOf", ())]:
        for choice in choices:
            yield from _study_values(choice, models)
    elif "$ref" in field:
        yield from _study_values(models[field["$ref"].rpartition("/")[2]], models)
    elif field.get("type") == "array":
        elements = " or ".join(_study_values(field.get("items", {}), models))
        yield f"a list of {elements.replace('a table', 'tables') or 'values'}"
    elif (kind := field.get("type")) != "null":
        names = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
        limits = {"minimum": "at least", "exclusiveMinimum": "greater than", "maximum": "at most"}
        bounds = "".join(f", {text} {field[name]}" for name, text in limits.items() if name in field)
        yield names.get(str(kind), "a table" if kind == "object" else "a value") + bounds


def study_table() -> str:
    """The keys of a study file, and the axes."""
    from hybridnn.study.axes import AXES

    axes = ["| axis | in tables and names | values |", "|---|---|---|"]
    axes += [f"| `{axis.name}` | {axis.label} | {_words(axis.description)} |" for axis in AXES.values()]
    return "\n".join(["## Keys", "", _key_table(study_keys()), "", "## Axes", "", *axes])


def _key_table(rows: list[Setting]) -> str:
    lines = ["| key | value | default | description |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.allowed} | {row.default} | {_words(row.description)} |" for row in rows]
    return "\n".join(lines)


def command_line() -> str:
    """Every command with its arguments and options."""
    from hybridnn.cli.main import application

    return "\n\n".join(_commands("hybridnn", application()))


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
    """The table of algorithms in the docstring of `hybridnn_papers.laugier_algorithms`, with the text around it."""
    from hybridnn_papers import laugier_algorithms

    text = laugier_algorithms.__doc__ or ""
    rule = re.compile(r"^=[= ]+$\n", re.MULTILINE)
    before, heads, rows, after = rule.split(text)
    starts = [column.start() for column in re.finditer(r"=+", rule.findall(text)[0])]
    columns = [slice(start, end) for start, end in pairwise([*starts, None])]
    lines = [[_code(line[column]).strip() for column in columns] for line in (heads + rows).splitlines()]
    lines.insert(1, ["---"] * len(columns))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([_code(before.partition("\n\n")[2].strip()), table, _code(after.strip())])


def animation(place: str) -> str:
    """A page of `ANIMATIONS`, as ``hybridnn schedule METHOD --out FILE.html`` writes it."""
    from hybridnn.drawing.html import html_page
    from hybridnn.drawing.timelines import schedule

    return html_page(schedule(Path(place).stem, stages=4, **ANIMATIONS[place]).animation)


def _code(text: str) -> str:
    """Text of a docstring with the marks of code in Markdown."""
    return CODE.sub(lambda code: f"`{code[1] or code[2]}`", text)


def _words(text: str | None) -> str:
    """A help text on one line, as Markdown in a table."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


MARKERS = {
    "settings": settings_table,
    "study-file": study_table,
    "statements": lambda: _key_table(statement_keys()),
    "command-line": command_line,
    "algorithms": algorithms,
}
"""What a line ``<!-- generated: NAME -->`` of a page is replaced by."""
