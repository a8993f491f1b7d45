"""Cost models: what collectives, training steps and layouts cost, and on which machine."""

from __future__ import annotations

import os
from pathlib import Path

MACHINE_FILE = "machine.toml"
MACHINE_VARIABLE = "HYBRIDNN_MACHINE"


def find_machine(name: Path | str | None = None) -> Path | str | None:
    """Source of a machine: `name`, else ``$HYBRIDNN_MACHINE``, else ``machine.toml`` in the working folder.

    A file may be missing. None if nothing is named and there is no ``machine.toml``.
    """
    if name is not None:
        return name
    if variable := os.environ.get(MACHINE_VARIABLE):
        return variable
    return Path(MACHINE_FILE) if os.path.lexists(MACHINE_FILE) else None
