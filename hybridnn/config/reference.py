"""Reference of the settings and of the keys of other files: allowed values, defaults and descriptions.

The annotations by which the program checks values say what is allowed. Descriptions are the comments of
``settings.toml`` beside this module, an example with every default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hybridnn.config.settings import Settings
from hybridnn.utils.checks import OneOf, allowed_text, base_type, type_hints
from hybridnn.utils.settings_models import FieldsOf

EXAMPLE = Path(__file__).with_name("settings.toml")
COMMENT = re.compile(r"^(?:# )?(?P<key>\w+) = .*? +# (?P<text>.*)$|^(?:# )?\[(?P<section>[\w.]+)\]")
CHOICES = re.compile(r'; "\w[\w", -]*$')
"""Other values at the end of a comment, which the table has in a column of its own."""


@dataclass(frozen=True)
class Setting:
    """A setting of a run, or a key of a study file; all but the name is Markdown."""

    name: str  # with its section: ``training.epochs``
    allowed: str
    default: str
    description: str


def settings() -> list[Setting]:
    """All settings: names, allowed values and defaults by the types that check them, descriptions of the example."""
    rows = [row for section, info in Settings.model_fields.items() for row in _rows(section, info, _comments())]
    order = list(dict.fromkeys(row.name.rpartition(".")[0] for row in rows))
    return sorted(rows, key=lambda row: order.index(row.name.rpartition(".")[0]))


def _rows(name: str, info: FieldInfo, comments: Mapping[str, str]) -> Iterator[Setting]:
    """The setting of a field, or those of the section or of the dataclasses that are its value."""
    kind: Any = info.annotation
    if of := next((item for item in info.metadata if isinstance(item, FieldsOf)), None):
        if len(of.kinds) > 1:
            names = [kind.name for kind in of.kinds]
            yield _setting(f"{name}.name", Annotated[str, OneOf(tuple(names))], _shown(names[0]), comments)
        hints = {key: hint for kind in reversed(of.kinds) for key, hint in type_hints(kind).items()}
        for key in of.keys:
            if key != "name" or len(of.kinds) == 1:
                yield _setting(f"{name}.{key}", hints[key], _defaults(key, of.kinds), comments)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for key, inner in kind.model_fields.items():
            yield from _rows(f"{name}.{key}", inner, comments)
    else:
        yield _setting(name, _kind(info), _shown(info.default), comments)


def _kind(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _setting(name: str, kind: Any, default: str, comments: Mapping[str, str]) -> Setting:
    allowed = re.sub(r"'([^']*)'", r"`\1`", allowed_text(kind))
    return Setting(name, allowed, default, comments.get(name, ""))


def _shown(default: object) -> str:
    return "" if default in (None, ()) else f"`{json.dumps(default)}`"


def _defaults(key: str, kinds: Sequence[type[Any]]) -> str:
    """The default of a key, and those of the dataclasses that have another one."""
    shown = {kind: _shown(item.default) for kind in kinds for item in fields(kind) if item.name == key}
    first, *_ = shown.values()
    return "; ".join([first, *(f"{kind.name}: {text}" for kind, text in shown.items() if text != first)])


def allowed_values(name: str) -> list[str]:
    """The values of a setting that allows only a few."""
    allowed = next((row.allowed for row in settings() if row.name == name), "")
    return re.findall(r"`([^`]+)`", allowed) + (["true", "false"] if "true or false" in allowed else [])


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


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """All keys of a file, by the model that checks it; ``[]`` stands for elements."""
    for key, info in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        kind = _kind(info)
        default = "required" if info.is_required() else _shown(None if info.default_factory else info.default)
        yield _setting(prefix + key, kind, default, {prefix + key: info.description or ""})
        for inner, suffix in ((kind, ""), (next(iter(get_args(base_type(kind))), None), "[]")):
            if isinstance(of := base_type(inner), type) and issubclass(of, BaseModel):
                yield from keys_of(of, f"{prefix}{key}{suffix}.")
