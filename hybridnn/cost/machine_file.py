"""Machine files: a `Machine` as TOML, written by ``hybridnn calibrate`` or by hand.

``hpc_jobs/machines/cluster-1024.toml`` explains every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hybridnn.cost import MACHINE_FILE, MACHINE_VARIABLE, find_machine
from hybridnn.cost.machine import Machine
from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.files import FileError, read_toml, shipped_folder, write_atomically
from hybridnn.utils.settings_models import is_model, setting_error
from hybridnn.utils.text import shown_path, user_path

HEADER = """\
# A machine for `hybridnn plan`, `simulate` and `train`. Every key is explained in cluster-1024.toml, which ships with
# hybridnn. To plan for more nodes of the same kind, raise `nodes`.

"""


def require_machine(name: Path | str | None = None) -> Machine:
    """Read the machine of `find_machine`; `SettingError` if there is none, `DataError` if its file is not valid."""
    source = find_machine(name)
    if source is None:
        missing = f"there is none in this folder, and ${MACHINE_VARIABLE} is not set"
        how = "`hybridnn calibrate -n 2 --out machine.toml` writes one"
        raise SettingError("machine file", MACHINE_FILE, f"{missing}; {how}")
    return read_machine(source)


def read_machine(source: Path | str) -> Machine:
    """Read a machine from a ``.toml`` file, or by the bare name of one that ships with the package.

    Raises `DataError`, one line with file, key, value and what is allowed: there is no such file or name, it is not
    TOML, or a key is missing, unknown or has an invalid value.
    """
    path = user_path(source)
    if not path.suffix and path.name == str(source):
        if path.name not in shipped_machines():
            given, shipped = f"machine {one_line(path.name)!r}", ", ".join(shipped_machines())
            raise DataError(f"{given}: give a .toml file, or one of the machines that ship: {shipped}")
        path = shipped_folder("hpc_jobs") / "machines" / f"{path.name}.toml"
    if path.suffix.lower() != ".toml":
        raise FileError(path, "a machine file must end in .toml")
    values = read_toml(path)
    try:
        return Machine.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{shown_path(path)}: {setting_error(error, tuple(_key_names(Machine, values)))}") from None


def shipped_machines() -> tuple[str, ...]:
    """Names of the machines that ship with the package."""
    return tuple(sorted(path.stem for path in (shipped_folder("hpc_jobs") / "machines").glob("*.toml")))


def write_machine(machine: Machine, path: Path | str) -> None:
    """Write a machine as TOML, atomically; `EnvironmentProblem` if that fails. `read_machine` reads an equal one."""
    import tomli_w

    text = HEADER + tomli_w.dumps(machine.model_dump(exclude_none=True))
    write_atomically(user_path(path), text)


def _key_names(section: type[BaseModel], values: object, prefix: str = "") -> Iterator[str]:
    """Dotted names of all allowed keys, in those sections that `values` has."""
    for key, info in section.model_fields.items():
        yield prefix + key
        inner = _section_in(info.annotation)
        value = values.get(key) if isinstance(values, dict) else None
        if inner is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _key_names(inner, item, f"{prefix}{key}[{index}].")
        elif get_origin(info.annotation) is dict:
            for name, item in value.items() if isinstance(value, dict) else ():
                yield from _key_names(inner, item, f"{prefix}{key}.{name}.")
        else:
            yield from _key_names(inner, value, f"{prefix}{key}.")


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The model class of a key's value, or of its items."""
    if is_model(annotation):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part))), None)
