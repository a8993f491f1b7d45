"""Damage of files, for tests and the fault drill: cuts, changed bytes, wrong values, false sizes, other objects."""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

Damage = Callable[[Path, Random], object]
"""Damages a file, with a source of random choices."""

DEPTH, DIGITS = 10_000, 5_000
TOO_LARGE = 8 << 40


# -- replacement by other objects -------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        descriptor = os.open(path.parent, os.O_PATH)
        server.bind(f"/proc/self/fd/{descriptor}/{path.name}")  # addresses are short
        os.close(descriptor)


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)  # sparse: occupies no disk space


REPLACEMENTS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "No such file or directory"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a FIFO": (os.mkfifo, "not a regular file"),
    "a socket": (_socket, "No such device"),
    "a link to an endless file": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a link to a terminal": (lambda path: path.symlink_to("/dev/ptmx"), "not a regular file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    "4 TB of zeros": (_endless, "larger than"),
}
"""By name, a function that makes what cannot be read in place of a file, and the reason in the error message."""


def replace(path: Path, name: str) -> str:
    """Replace a file or a folder, if it exists, by one of `REPLACEMENTS`; return the reason in the error message."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make, reason = REPLACEMENTS[name]
    make(path)
    return reason


IMPOSSIBLE_NAMES: Mapping[str, str] = {
    "file/inside": "Not a directory",
    "n" * 300: "File name too long",
    "/".join(["n" * 200] * 30): "File name too long",
    "a\0b": "embedded null",
    "a\nb": "No such file",
}
"""Names that no file has, beside a file with the name ``file``, and the reason in the error message."""


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


CUTS: dict[str, Damage] = {
    "anywhere": _cut_anywhere,
    "in its last line": _cut_last_line,
    "after a line": _cut_at_line,
    "to nothing": lambda path, random: os.truncate(path, 0),
}
"""By name."""


# -- changed content -------------------------------------------------------------------------------------------------


def _flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _nested(path: Path, random: Random) -> None:
    opening, closing = random.choice([("[", "]"), ('{"a":', "}")])
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


CONTENT: dict[str, Damage] = {
    "a bit flipped": _flip,
    "random bytes": lambda path, random: path.write_bytes(random.randbytes(random.randint(1, 2000))),
    "more bytes": lambda path, random: path.write_bytes(path.read_bytes() + random.randbytes(random.randint(1, 20))),
    "zeros": lambda path, random: path.write_bytes(bytes(path.stat().st_size)),  # as after a power failure
    "nested deep": _nested,
    "an integer of 5,000 digits": _huge_integer,
    "a NUL": _nul,
    "empty arrays": _empty_array,
    "arrays of 8 TB": _too_large_array,
}
"""By name; those of texts and those of arrays are for such files alone."""


# -- wrong values -----------------------------------------------------------------------------------------------------

WRONG_VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    -1,
    0,
    0.5,
    10**400,
    2**63 - 1,
    1e308,
    float("nan"),
    float("inf"),
    "x" * 5_000,
    "\0\n\x1b",
    "../../x",
    [[[[[[[[[[0]]]]]]]]]],
    [1, "x"],
    {"x": {"x": None}},
)
"""Values that are invalid at most places of every file of the library."""

_NOTHING = object()


def mutations(document: Any, every: int = 1) -> Iterator[Any]:
    """Copies of nested lists and tables with one change each: a wrong value, a missing entry, or an additional one.

    Only every `every`-th of them is returned. If `every` and the number of wrong values have no common factor, the
    values differ from place to place.
    """
    places = list(_places(document))
    changes: list[tuple[tuple[Any, ...], Any]] = [
        (place, value) for place in places for value in (*WRONG_VALUES, _NOTHING)
    ]
    for place in [(), *places]:
        inner = _at(document, place)
        if isinstance(inner, dict):
            changes.append(((*place, "unknown"), 1))
        elif isinstance(inner, list) and inner:
            changes.append((place, inner * 2))
    for place, value in changes[::every]:
        yield changed(document, place, value) if place else value


def changed(document: Any, place: Sequence[Any], value: Any) -> Any:
    """A copy of nested lists and tables with another value at a place."""
    made = deepcopy(document)
    parent = _at(made, place[:-1])
    if value is _NOTHING:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return made


def _places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        items = list(document.items())
    else:
        items = list(enumerate(document)) if isinstance(document, list) else []
    for key, value in items:
        yield (*before, key)
        yield from _places(value, (*before, key))


def _at(document: Any, place: Sequence[Any]) -> Any:
    for key in place:
        document = document[key]
    return document


class Malicious:
    """An object whose pickle runs a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('pathlib').Path('ran').touch()",)


def forge(path: Path, field: Sequence[str], value: Any) -> None:
    """Change a field of a manifest and update the list of digests, so that only the value is wrong."""
    path.write_text(json.dumps(changed(json.loads(path.read_text()), field, value), indent=2) + "\n")
    listed = path.parent / "SHA256SUMS"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    text = re.sub(rf"^\w+(?=  {re.escape(path.name)}$)", digest, listed.read_text(), flags=re.MULTILINE)
    listed.write_text(text)
