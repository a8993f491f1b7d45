"""Machine files: a machine as TOML or JSON, written by ``hybridnn calibrate`` or by hand.

``hpc_jobs/machines/cluster-1024.toml`` explains every key.

Where a machine file is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hybridnn.cost.machine.machine import Machine
from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.files import FileError, parse_toml, read_json, read_toml, write_atomically
from hybridnn.utils.settings_models import setting_error
from hybridnn.utils.text import shown_path

HEADER = """\
# A machine for `hybridnn plan`, `simulate` and `train`. Every key is explained in cluster-1024.toml, which ships with
# hybridnn. To plan for more nodes of the same kind, raise `nodes`.

"""


def read_machine(source: Path | str) -> Machine:
    """Read a machine file.

    Parameters
    ----------
    source : Path or str
        A ``.toml`` or ``.json`` file, or the bare name of a machine that ships with the package.

    Raises
    ------
    DataError
        If there is no such file or name, it is not TOML or JSON, or a key is missing, unknown or has a value that is
        not allowed; one line that names file, key, value and what is allowed.
    """
    path = Path(source)
    if not path.suffix and path.name == str(source):
        return _machine_from(str(source), parse_toml(_shipped_text(str(source))))
    if path.suffix.lower() not in (".toml", ".json"):
        raise FileError(path, "a machine file must end in .toml or .json")
    is_toml = path.suffix.lower() == ".toml"
    return _machine_from(shown_path(path), read_toml(path) if is_toml else read_json(path, finite=False))


def shipped_machines() -> tuple[str, ...]:
    """Names of the machines that ship with the package."""
    folder = files("hybridnn.hpc_jobs") / "machines"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")))


def write_machine(machine: Machine, path: Path | str) -> None:
    """Write a machine as TOML, whole or not at all; `read_machine` reads an equal one back.

    Raises
    ------
    EnvironmentProblem
        If the file cannot be written.
    """
    import tomli_w

    text = HEADER + tomli_w.dumps(machine.model_dump(exclude_none=True))
    write_atomically(Path(path), text)


def _shipped_text(name: str) -> str:
    if name not in shipped_machines():
        known = ", ".join(shipped_machines())
        raise DataError(
            f"machine {one_line(name)!r}: give a .toml or .json file, or one of the machines that ship: {known}"
        )
    return (files("hybridnn.hpc_jobs") / "machines" / f"{name}.toml").read_text(encoding="utf-8")


def _machine_from(where: str, values: object) -> Machine:
    if not isinstance(values, dict):
        raise DataError(f"{where}: must be an object with the keys {', '.join(Machine.model_fields)}")
    try:
        return Machine.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{where}: {setting_error(error, tuple(_names(Machine, values)))}") from None


def _names(section: type[BaseModel], given: object, prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys that the sections of a file may have, as far as the file has these sections."""
    for key, info in section.model_fields.items():
        yield prefix + key
        inner = _section_in(info.annotation)
        value = given.get(key) if isinstance(given, dict) else None
        if inner is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _names(inner, item, f"{prefix}{key}[{index}].")
        elif get_origin(info.annotation) is dict:
            for name, item in value.items() if isinstance(value, dict) else ():
                yield from _names(inner, item, f"{prefix}{key}.{name}.")
        else:
            yield from _names(inner, value, f"{prefix}{key}.")


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The kind of section that a key holds, alone or in a list or table."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)


MACHINE_FILE = "machine.toml"
MACHINE_VARIABLE = "HYBRIDNN_MACHINE"


def find_machine(given: Path | str | None = None) -> Path | str | None:
    """What `read_machine` should read: what was `given`, else ``$HYBRIDNN_MACHINE``, else ``machine.toml`` here.

    Returns
    -------
    Path, str or None
        A file, which need not exist if it was named, or the name of a machine that ships with the package; None if
        nothing was named and there is no ``machine.toml`` in the working folder.
    """
    if given is not None:
        return given
    if named := os.environ.get(MACHINE_VARIABLE):
        return named
    return Path(MACHINE_FILE) if os.path.lexists(MACHINE_FILE) else None


def require_machine(given: Path | str | None = None) -> Machine:
    """Read the machine that `find_machine` finds.

    Raises
    ------
    SettingError
        If there is none; the message says how to make one.
    DataError
        If the file cannot be used.
    """
    found = find_machine(given)
    if found is None:
        missing = f"there is none in this folder, and ${MACHINE_VARIABLE} is not set"
        how = "`hybridnn calibrate -n 2 --out machine.toml` writes one"
        raise SettingError("machine file", MACHINE_FILE, f"{missing}; {how}")
    return read_machine(found)
