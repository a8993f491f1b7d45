"""Settings file: settings from TOML and ``section.key=value`` overrides, and back to TOML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridnn.config.settings import Settings, settings_from
from hybridnn.errors import SettingError
from hybridnn.utils.files import FileError, parse_toml, read_toml
from hybridnn.utils.settings_models import Section
from hybridnn.utils.text import shown_path

OVERRIDE_FORM = "must have the form section.key=value, for example training.epochs=20"
SHORT_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Numbers such as ``.01`` and ``1.``, which TOML does not allow."""
EXCLUDED_BY = {"data.name": ("data", "file"), "data.file": ("data", "name")}
"""Section and key that an override of another key removes."""


def load_settings(path: Path | None, overrides: Sequence[str] = (), *, ignored: Sequence[str] = ()) -> Settings:
    """Read the settings of a run from a TOML file, or the defaults.

    Parameters
    ----------
    overrides : sequence of str
        ``section.key=value``, applied in order. The value is read as TOML, or as a number such as ``.01``; anything
        else is text, so that ``optimizer.name=adam`` needs no quotes. A data set replaces a data file, and the reverse.
    ignored : sequence of str
        ``section.key`` of keys of the file that are ignored.

    Raises
    ------
    SettingError
        If the file cannot be read or is not TOML, or any setting is unknown or not allowed.
    """
    values = {} if path is None else _read(path)
    for section, key in (name.split(".") for name in ignored):
        if isinstance(table := values.get(section), dict):
            table.pop(key, None)
    for text in overrides:
        _apply(values, text)
    try:
        return settings_from(values)
    except SettingError as error:
        given = {text.partition("=")[0].strip() for text in overrides}
        if path is None or error.setting in given:
            raise
        raise error.in_file(shown_path(path)) from None


def to_toml(settings: Settings) -> str:
    """Settings as TOML, without keys that have no effect; `load_settings` reads equal settings back."""
    import tomli_w

    foreign = {name: set(section.foreign_keys()) for name, section in settings if isinstance(section, Section)}
    values = settings.model_dump(exclude=foreign, exclude_none=True)
    if settings.device.name == "cpu":  # the other options are those of a GPU
        values["device"] = {"name": "cpu"}
    return tomli_w.dumps(values)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except FileError as error:
        raise SettingError("settings file", str(path), error.reason) from error


def _apply(values: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not sections or not all((*sections, key)):
        raise SettingError("--set", text, OVERRIDE_FORM)
    table = values
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingError("--set", text, f"{section} is a value, not a section; {OVERRIDE_FORM}")
    table[key] = _value(value.strip())
    if other := EXCLUDED_BY.get(".".join((*sections, key))):
        values[other[0]].pop(other[1], None)


def _value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return float(text) if SHORT_FLOAT.fullmatch(text) else text
