"""Forged manifests of checkpoints, whose digests are valid."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ARRAY_VALUES", "NAMES", "VALUES", "forge"]

_VALUES: dict[str, tuple[Any, ...]] = {
    "format_version": (10**6, 10**30, "1", 0.5, None, []),
    "origin": (None,),
    "origin/layout/method": ("", "no such method", None),
    "origin/layout/stages": ([], [[0, 0]]),
    "origin/layout/layers": ([10**9],),
    "origin/layout/chunks": (0, -1),
    "progress": ([],),
    "progress/minibatches": (10**6, 2**62, -1),
    "progress/epoch": (0, 10**12),
    "progress/step": (-5, 10**40),
    "progress/samples": (7000, -20, float("nan")),
    "progress/loss_sum": ("much",),
    "slots": (["nothing"], None),
    "arrays": ({}, []),
}
_ARRAY_VALUES: dict[str, tuple[Any, ...]] = {
    "shape": ([10**12], [], [-1, 3], None),
    "dtype": ("object", "no dtype"),
    "bytes": (8 << 40, -1),
    "sha256": ("", "0" * 64),
}
VALUES = [(field, value) for field, values in _VALUES.items() for value in values]
"""Paths of fields of a manifest, and wrong values."""

ARRAY_VALUES = [(field, value) for field, values in _ARRAY_VALUES.items() for value in values]
"""Fields of an array in a manifest, and wrong values."""

NAMES = ("../../config.toml", "/dev/zero", "x" * 5000 + ".npy", "layers\0.npy", "", ".")
"""Names of arrays that point outside the folder, are too long, or contain a NUL."""


def forge(path: Path, field: Sequence[str], value: Any) -> None:
    """Change a field of a manifest and update the list of digests, so that only the value is wrong."""
    manifest = json.loads(path.read_text())
    inner = manifest
    for key in field[:-1]:
        inner = inner[key]
    inner[field[-1]] = value
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    listed = path.parent / "SHA256SUMS"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    text = re.sub(rf"^\w+(?=  {re.escape(path.name)}$)", digest, listed.read_text(), flags=re.MULTILINE)
    listed.write_text(text)
