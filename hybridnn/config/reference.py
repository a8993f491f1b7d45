"""Reference of the settings and of the keys of other files: allowed values, defaults and descriptions.

The program itself says what it allows, by its refusals of wrong values. Descriptions are the comments of
``settings.toml`` beside this module, an example with every default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridnn.config.settings import settings_from
from hybridnn.errors import SettingError
from hybridnn.nn.learning_rates import SCHEDULES
from hybridnn.nn.optimizer_names import OPTIMIZERS
from hybridnn.utils.settings_models import by_dotted_name

EXAMPLE = Path(__file__).with_name("settings.toml")
COMMENT = re.compile(r"^(?:# )?(?P<key>\w+) = .*? +# (?P<text>.*)$|^(?:# )?\[(?P<section>[\w.]+)\]")
CHOICES = re.compile(r'; "\w[\w", -]*$')
"""Other values at the end of a comment, which the table has in a column of its own."""
UNLIKELY = "?"
"""A text that no setting accepts which does not accept every text."""


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
    """All settings: names, allowed values and defaults by the program, descriptions of the example."""
    comments = _comments()
    rows: dict[str, Setting] = {}
    for variant, values in _variants():
        for name, default in by_dotted_name(settings_from(values).model_dump()).items():
            is_given = name.rpartition(".")[2] in values.get(name.partition(".")[0], {})
            shown = "" if default in (None, ()) or (is_given and variant) else f"`{json.dumps(default)}`"
            known = rows.get(name)
            if known is None:
                rows[name] = Setting(name, _allowed(name, values), shown, comments.get(name, ""))
            elif not name.endswith(".name") and shown not in ("", known.default.partition(";")[0]):
                rows[name] = replace(known, default=f"{known.default}; {variant}: {shown}".removeprefix("; "))
    order = list(dict.fromkeys(name.rpartition(".")[0] for name in rows))
    return sorted(rows.values(), key=lambda row: order.index(row.name.rpartition(".")[0]))


def _variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that together have every key: those without any value, and those with each optimizer and schedule."""
    needed: dict[str, dict[str, Any]] = {"step": {"milestones": [1]}, "warmup-linear": {"warmup_epochs": 1}}
    yield "", {}
    for optimizer in OPTIMIZERS:
        yield optimizer.name, {"optimizer": {"name": optimizer.name}}
    for schedule in SCHEDULES:
        yield schedule.name, {"schedule": {"name": schedule.name, **needed.get(schedule.name, {})}}


def allowed_values(name: str) -> list[str]:
    """The values of a setting that allows only a few."""
    allowed = _allowed(name, {})
    if name == "parallel.method":
        return allowed.split(", ")
    return re.findall(r"`([^`]+)`", allowed) + (["true", "false"] if "true or false" in allowed else [])


def _allowed(name: str, values: Mapping[str, Any]) -> str:
    """What the program names as allowed when it refuses wrong values of a setting."""
    texts = _refusals(name, values, lambda value: value)
    if "a list" in texts:
        elements = ", ".join(_refusals(name, values, lambda value: [value]))
        texts = [f"a list of {elements}" if elements.endswith("numbers") else f"a list; each element {elements}"]
    return re.sub(r"'([^']*)'", r"`\1`", ", ".join(texts))


def _refusals(name: str, values: Mapping[str, Any], given: Callable[[object], object]) -> list[str]:
    first = _refusal(name, given(UNLIKELY), values)
    first = "" if "does not belong to" in first else first
    tried: tuple[object, ...] = (-(10**9), 10**30) if "number" in first else () if first else (5, True)
    texts = [first, *(_refusal(name, given(value), values) for value in tried)]
    around = r"^.*?Allowed are |^must be (one of )?|, as in .*$| \(and \d+ more\)$| = 10$"
    texts = [re.sub(around, "", text) for text in texts]
    return list(dict.fromkeys(text for text in texts if text and "does not belong to" not in text))


def _refusal(name: str, value: object, values: Mapping[str, Any]) -> str:
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
    """The comments behind the settings of the example."""
    found, section = {}, ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if match := COMMENT.match(line):
            if match["section"]:
                section = match["section"]
            else:
                text = CHOICES.sub("", match["text"])
                found[f"{section}.{match['key']}"] = f"{text[0].upper()}{text[1:]}."
    return found


def keys_of(schema: Mapping[str, Any]) -> list[Setting]:
    """All keys of a file, by the schema that checks it; ``NAME`` stands for a name and ``[]`` for elements."""
    return list(_study_rows("", schema, schema.get("$defs", {}), set()))


def _study_rows(
    prefix: str, section: Mapping[str, Any], models: Mapping[str, Any], shown_models: set[str]
) -> Iterator[Setting]:
    required = section.get("required", ())
    for key, field in sorted(section["properties"].items(), key=lambda item: item[0] not in required):
        default = field.get("default")
        shown = "required" if key in required else f"`{json.dumps(default)}`" if default else ""
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
