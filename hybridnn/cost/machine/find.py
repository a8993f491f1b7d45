"""Where a machine file is looked for."""

from __future__ import annotations

import os
from pathlib import Path

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.machine.machine_file import read_machine
from hybridnn.errors import SettingError

__all__ = ["MACHINE_FILE", "MACHINE_VARIABLE", "find_machine", "require_machine"]

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
