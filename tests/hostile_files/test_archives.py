"""Archives of arrays that hold none, or not what they claim: refused in one line that allocates little memory."""

import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace as with_changes
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybridnn.utils import files
from reference.damaged_files import Malicious
from reference.readers import FUNCTIONS, LABELS, X, load, possible_refusal, refusal


def npy(header: str, payload: bytes = b"") -> bytes:
    """An ``.npy`` file with any header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload


def header(shape: object, descr: str = "<f8") -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"


def archive(path: Path, x_train: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """An ``.npz`` file with sound labels and these bytes as ``x_train``."""
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x_train.npy", x_train)
        file.writestr("y_train.npy", labels.getvalue())
    return path


def changed_inside(path: Path) -> None:
    np.savez_compressed(path, x_train=np.random.default_rng(0).normal(size=(200, 3)), y_train=np.arange(200) % 3)
    changed = bytearray(path.read_bytes())
    changed[500:600] = b"\xff" * 100
    path.write_bytes(changed)


BEYOND = 0xFFFFFF00
"""Size of a member, its header of 128 bytes included, that the directory of an archive and that header agree on."""


def in_directory(field: int, value: bytes) -> Callable[[Path], None]:
    """A function that changes an entry of the archive's central directory."""

    def change(path: Path) -> None:
        archive(path, npy(header((BEYOND - 128,), "|u1").ljust(128 - 11), b"\0" * 64))
        changed = bytearray(path.read_bytes())
        entry = changed.index(b"PK\x01\x02") + field
        changed[entry : entry + len(value)] = value
        path.write_bytes(changed)

    return change


def claims(text: str, method: int = zipfile.ZIP_STORED, payload: bytes = X.tobytes()) -> Callable[[Path], object]:
    return lambda path: archive(path, npy(text, payload), method)


SIZES = struct.pack("<II", BEYOND, BEYOND)  # compressed, and not
# Newer versions of Python, and older ones that are patched, know where an entry ends and compare it with the next.
OVERLAP = "Overlapped entries" if hasattr(zipfile.ZipInfo, "_end_offset") else "4,294,966,912 bytes; the file holds "
OBJECTS = np.array([Malicious()], dtype=object)
UNREADABLE = "cannot read x_train: "
ARCHIVES: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.write_bytes(npy(header((4, 3)), X.tobytes())), "not an .npz file (numpy.savez writes them)"),
    (lambda path: path.write_bytes(b"PK\x03\x04 not really"), "not an .npz file"),
    (lambda path: np.savez(path, x_train=OBJECTS, y_train=LABELS), f"{UNREADABLE}Object arrays"),
    (changed_inside, UNREADABLE),
    (in_directory(10, b"\x63"), "That compression method is not supported"),
    (in_directory(8, b"\x01"), " is encrypted"),
    (in_directory(20, SIZES), OVERLAP),
    (claims(header((4, 3)), zipfile.ZIP_BZIP2), "compressed by method 12"),  # which may expand without limit
    (claims(header((4, 3)), zipfile.ZIP_LZMA), "compressed by method 14"),
    (lambda path: archive(path, b"\x93NUMPY\3\0\x10\0\0\0" + b" " * 16), "array format 3.0 is not that of plain"),
    (claims(header((10**6, 10**6))), "claims shape (1000000, 1000000) of float64, 8,000,000,000,000 bytes"),
    (claims(header((10**6, 10**6)), zipfile.ZIP_DEFLATED), "claims shape (1000000, 1000000) of float64"),
    (claims(header((2**40, 2**40))), "claims shape (1099511627776, 1099511627776)"),
    (claims(header((-4, -3))), "claims shape (-4, -3)"),
    (claims(header((4, 3), "|O")), "Object arrays cannot be loaded"),
    (claims(header((2**70, 0)), payload=b""), UNREADABLE),
    (claims(header("(" * 4000 + ")" * 4000)), UNREADABLE),
    (claims(header("4" * 5000)), UNREADABLE),
    (claims(header((4, 3), "no such type")), UNREADABLE),
    (claims(header((4, 3)) + " " * 60_000), UNREADABLE),
]
"""Archives that hold no plain arrays, or not what they claim, and the reason in the message."""


@pytest.mark.parametrize("name", ["npz", "npz to train on", "npz to predict from"])
def test_an_archive_that_holds_no_plain_arrays(name: str, folder: Path) -> None:
    for write, reason in ARCHIVES:
        write(folder / "mine.npz")
        assert reason in refusal(FUNCTIONS[name], folder / "mine.npz", measured=True)
    assert not (folder / "ran").exists()


def test_an_archive_that_expands_beyond_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(folder / "mine.npz", x_train=np.zeros((1000, 1000)), y_train=np.arange(1000) % 2)
    assert (folder / "mine.npz").stat().st_size < 20_000
    monkeypatch.setattr(files, "memory_bytes", lambda: 1 << 22)
    for name in ("npz", "npz to train on", "npz to predict from"):
        reader = with_changes(FUNCTIONS[name], memory=1 << 22)
        message = refusal(reader, folder / "mine.npz", measured=True)
        assert "cannot read the file: its arrays take 8,0" in message
        assert "and this machine has 4,194,304" in message


def test_names_of_arrays_in_a_message_are_short(folder: Path) -> None:
    with zipfile.ZipFile(folder / "mine.npz", "w") as file:
        for number in range(500):
            file.writestr(f"{number}\n{'x' * 300}", npy(header((1,)), b"\0" * 8))
    message = refusal(FUNCTIONS["npz to train on"], folder / "mine.npz")
    assert "and 488 more" in message
    assert len(message) < 2000


@given(
    start=st.binary(max_size=300),
    text=st.binary(max_size=200)
    | st.builds(
        lambda shape, descr: header(tuple(shape), descr).encode(),
        st.lists(st.integers(-(2**65), 2**65), max_size=4),
        st.sampled_from(["<f8", "|u1", "<U0", "|V0", "<c16", "|b1", "<M8[s]", "|O", "<f2", ">i8", "<U100000000"]),
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
@example(start=b"", text=b"", method=zipfile.ZIP_STORED)
def test_arrays_of_any_bytes(start: bytes, text: bytes, method: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "mine.npz"
    for array in (start, npy("")[:8] + struct.pack("<H", len(text)) + text + start):
        archive(path, array, method)
        with possible_refusal(path):
            load(path)
