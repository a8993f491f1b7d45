"""Damage of files and folders: truncation, changed content, forged fields, and replacement by other objects."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

__all__ = ["CUTS", "FIELDS", "FORGERIES", "PLACES_TAKEN", "Damage", "devices_can_be_made"]

Damage = Callable[[Path, Random], None]
"""Damages a path, with a source of random choices."""

DEPTH, DIGITS = 10_000, 5_000
ENDLESS = Path("/dev/zero")
ZERO_DEVICE = os.makedev(1, 5)
TOO_LARGE = 8 << 40


# -- cut -------------------------------------------------------------------------------------------------------------


def _cut_anywhere(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def _cut_last_line(path: Path, random: Random) -> None:
    content = path.read_bytes()
    end = len(content.rstrip(b"\n"))
    start = content.rfind(b"\n", 0, end) + 1
    os.truncate(path, random.randrange(min(start + 1, end - 1), end))


def _cut_at_line(path: Path, random: Random) -> None:
    ends = [match.end() for match in re.finditer(b"\n", path.read_bytes())]
    os.truncate(path, random.choice(ends[:-1]) if len(ends) > 1 else 0)


def _empty(path: Path, random: Random) -> None:
    os.truncate(path, 0)


CUTS: dict[str, Damage] = {
    "anywhere": _cut_anywhere,
    "in its last line": _cut_last_line,
    "after a line": _cut_at_line,
    "to nothing": _empty,
}
"""By name."""


# -- replacement by other objects -------------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _fifo(path: Path, random: Random) -> None:
    _remove(path)
    os.mkfifo(path)


def _device(path: Path, random: Random) -> None:
    _remove(path)
    os.mknod(path, stat.S_IFCHR | 0o644, ZERO_DEVICE)


def _endless(path: Path, random: Random) -> None:
    _remove(path)
    path.symlink_to(ENDLESS)


def _self_link(path: Path, random: Random) -> None:
    _remove(path)
    path.symlink_to(path.name)


def _other_kind(path: Path, random: Random) -> None:
    """Replace a folder by a file, or a file by a folder."""
    folder = path.is_dir()
    _remove(path)
    if folder:
        path.write_text("a file\n")
    else:
        path.mkdir()


PLACES_TAKEN: dict[str, Damage] = {
    "a FIFO": _fifo,
    "a device": _device,
    "a link to an endless file": _endless,
    "a link to itself": _self_link,
    "a folder, or a file for a folder": _other_kind,
}
"""Replacements of a file or folder, by name."""


def devices_can_be_made() -> bool:
    """Whether a device can be made, which needs root."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder) / "device", stat.S_IFCHR | 0o644, ZERO_DEVICE)
        except OSError:
            return False
        return True


# -- changed content -------------------------------------------------------------------------------------------------


def _flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _random_bytes(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(random.randint(1, 2000)))


def _nothing_but_zeros(path: Path, random: Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))  # as after a power failure


def _nested(path: Path, random: Random) -> None:
    opening, closing = random.choice(["[]", ("{'a':".replace("'", '"'), "}")])
    text = opening * DEPTH + "1" + closing * DEPTH
    path.write_text(f"a = {text}\n" if path.suffix == ".toml" else f"{text}\n")


def _huge_integer(path: Path, random: Random) -> None:
    """Replace one number by an integer of 5,000 digits."""
    text = path.read_text()
    numbers = list(re.finditer(r"(?<=[ :\[])\d+(?=[\s,}\]])", text))
    if not numbers:
        path.write_text("9" * DIGITS)
        return
    found = random.choice(numbers)
    path.write_text(text[: found.start()] + "9" * DIGITS + text[found.end() :])


def _nul(path: Path, random: Random) -> None:
    """Insert a NUL into the text."""
    content = path.read_bytes()
    place = random.choice([match.start() for match in re.finditer(rb"\w\w", content)]) + 1
    path.write_bytes(content[:place] + b"\0" + content[place:])


def _empty_array(path: Path, random: Random) -> None:
    """Replace arrays by empty ones."""
    shape = random.choice([(0,), (0, 0), (), (0, 7)])
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            names = arrays.files
        np.savez(path, allow_pickle=False, **dict.fromkeys(names, np.zeros(shape)))
    else:
        np.save(path, np.zeros(shape))


def _too_large_array(path: Path, random: Random) -> None:
    """Write a header of an array of 8 TB."""
    content = path.read_bytes()
    path.write_bytes(_claiming(content) if path.suffix == ".npy" else _npz_claiming(path))


def _claiming(content: bytes) -> bytes:
    length = int.from_bytes(content[8:10], "little")
    header = re.sub(rb"'shape': \([^)]*\)", b"'shape': (%d,)" % (TOO_LARGE // 8), content[10 : 10 + length]).rstrip()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return content[:8] + len(header).to_bytes(2, "little") + header + content[10 + length :]


def _npz_claiming(path: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(made, "w") as after:
        for name in before.namelist():
            after.writestr(name, _claiming(before.read(name)))
    return made.getvalue()


FORGERIES: dict[str, Damage] = {
    "a bit flipped": _flip,
    "random bytes": _random_bytes,
    "zeros": _nothing_but_zeros,
    "nested deep": _nested,
    "an integer of 5,000 digits": _huge_integer,
    "a NUL": _nul,
    "empty arrays": _empty_array,
    "arrays of 8 TB": _too_large_array,
}
"""By name."""


# -- fields of a manifest --------------------------------------------------------------------------------------------

WRONG: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("format_version",), 10**30),
    (("format_version",), "1"),
    (("format_version",), None),
    (("origin", "layout", "method"), ""),
    (("origin", "layout", "method"), "no such method"),
    (("origin", "layout", "method"), None),
    (("origin", "layout", "stages"), []),
    (("origin", "layout", "stages"), [[0, 0]]),
    (("origin", "layout", "layers"), [10**9]),
    (("origin", "layout", "chunks"), 0),
    (("origin", "layout", "chunks"), -1),
    (("progress", "minibatches"), 10**6),
    (("progress", "minibatches"), -1),
    (("progress", "epoch"), 0),
    (("progress", "epoch"), 10**12),
    (("progress", "step"), -5),
    (("progress", "samples"), -20),
    (("progress", "samples"), float("nan")),
    (("progress", "loss_sum"), "much"),
    (("progress", "step"), 10**40),
    (("format_version",), []),
    (("slots",), ["nothing"]),
    (("slots",), None),
    (("arrays",), {}),
    (("arrays",), []),
    (("origin",), None),
    (("progress",), []),
)


def _forge_field(path: Path, random: Random) -> None:
    """Change a field of a manifest and update the list of digests, so that only the value is wrong."""
    manifest = json.loads(path.read_text())
    keys, value = random.choice(WRONG)
    inner = manifest
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    _digest_again(path)


def _forge_name(path: Path, random: Random) -> None:
    """Give an array a name that points outside the folder, is too long, or contains a NUL."""
    manifest = json.loads(path.read_text())
    names = sorted(manifest["arrays"])
    wrong = random.choice(["../../config.toml", "/dev/zero", "x" * 5000 + ".npy", "layers\0.npy", "", "."])
    manifest["arrays"][wrong] = manifest["arrays"].pop(random.choice(names))
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    _digest_again(path)


def _forge_shape(path: Path, random: Random) -> None:
    """Give an array another shape, dtype or size."""
    manifest = json.loads(path.read_text())
    array = manifest["arrays"][random.choice(sorted(manifest["arrays"]))]
    key, value = random.choice(
        [
            ("shape", [10**12]), ("shape", []), ("shape", [-1, 3]), ("shape", None), ("dtype", "object"),
            ("dtype", "no dtype"), ("bytes", 8 << 40), ("bytes", -1), ("sha256", ""), ("sha256", "0" * 64),
        ]
    )  # fmt: skip
    array[key] = value
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    _digest_again(path)


def _digest_again(path: Path) -> None:
    """Update the digest of a manifest in the list of digests."""
    listed = path.parent / "SHA256SUMS"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    text = re.sub(rf"^\w+(?=  {re.escape(path.name)}$)", digest, listed.read_text(), flags=re.MULTILINE)
    listed.write_text(text)


FIELDS: dict[str, Damage] = {
    "a field forged": _forge_field,
    "a name forged": _forge_name,
    "a shape forged": _forge_shape,
}
"""Forged fields of manifests, by name."""
