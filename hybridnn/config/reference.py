"""Reference of the settings and of the keys of other files: allowed values, defaults and descriptions.

All of it is in the annotations by which the program checks values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hybridnn.config.settings import Settings
from hybridnn.utils.checks import OneOf, allowed_text, base_type, description, type_hints
from hybridnn.utils.settings_models import FieldsOf, by_dotted_name, is_model

DEFAULTS = by_dotted_name(Settings().model_dump())
"""Default values of the settings by their names."""


@dataclass(frozen=True)
class Setting:
    """A setting of a run, or a key of a study file; all but the name is Markdown."""

    name: str  # with its section: ``training.epochs``
    allowed: str
    default: str
    description: str

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        return re.split(r"(?<=\.) (?=[^a-z])", self.description)[0]

    @property
    def choices(self) -> list[str]:
        """The values, where only a few are allowed."""
        return re.findall(r"`([^`]+)`", self.allowed) + (["true", "false"] if "true or false" in self.allowed else [])


def settings() -> list[Setting]:
    """All settings: names, allowed values, defaults and descriptions."""
    rows = [row for section, info in Settings.model_fields.items() for row in _rows(section, info)]
    order = list(dict.fromkeys(row.name.rpartition(".")[0] for row in rows))
    return sorted(rows, key=lambda row: order.index(row.name.rpartition(".")[0]))


def _rows(name: str, info: FieldInfo) -> Iterator[Setting]:
    """The setting of a field, or those of the section or of the dataclasses that are its value."""
    kind: Any = info.annotation
    if of := next((item for item in info.metadata if isinstance(item, FieldsOf)), None):
        kinds: Any = of.kinds
        if len(kinds) > 1:
            names = tuple(kind.name for kind in kinds)
            yield _setting(f"{name}.name", Annotated[str, OneOf(names)], _shown(names[0]), description(_kind(info)))
        for key in of.keys:
            if key != "name" or len(kinds) == 1:
                hints = {kind: type_hints(kind)[key] for kind in kinds if key in type_hints(kind)}
                first, *_ = hints.values()
                yield _setting(f"{name}.{key}", first, _defaults(key, kinds), _texts(hints, kinds))
    elif is_model(kind):
        for key, inner in kind.model_fields.items():
            yield from _rows(f"{name}.{key}", inner)
    else:
        yield _setting(name, _kind(info), _shown(DEFAULTS[name]))


def _texts(hints: Mapping[type[Any], Any], kinds: Sequence[type[Any]]) -> str:
    """What a field is in every dataclass that has it; with their names, unless it is the same in all `kinds`."""
    of: dict[str, list[str]] = {}
    for kind, hint in hints.items():
        of.setdefault(description(hint), []).append(getattr(kind, "name", ""))
    text, *others = of
    if not others and len(hints) == len(kinds):
        return text
    texts = [f"of {', '.join(names)}: {text[:1].lower()}{text[1:].rstrip('.')}" for text, names in of.items()]
    return f"O{'; '.join(texts)[1:]}."


def _kind(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _setting(name: str, kind: Any, default: str, text: str = "") -> Setting:
    allowed = re.sub(r"'([^']*)'", r"`\1`", allowed_text(kind))
    return Setting(name, allowed, default, text or description(kind))


def _shown(default: object) -> str:
    return "" if default in (None, ()) else f"`{json.dumps(default)}`"


def _defaults(key: str, kinds: Sequence[type[Any]]) -> str:
    """The default of a key, and those of the dataclasses that have another one."""
    shown = {kind: _shown(item.default) for kind in kinds for item in fields(kind) if item.name == key}
    first, *_ = shown.values()
    return "; ".join([first, *(f"{kind.name}: {text}" for kind, text in shown.items() if text != first)])


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """All keys of a file, by the model that checks it; ``[]`` stands for elements."""
    for key, info in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        kind = _kind(info)
        default = "required" if info.is_required() else _shown(None if info.default_factory else info.default)
        yield _setting(prefix + key, kind, default, info.description or "")
        for inner, suffix in ((kind, ""), (next(iter(get_args(base_type(kind))), None), "[]")):
            if is_model(of := base_type(inner)):
                yield from keys_of(of, f"{prefix}{key}{suffix}.")
