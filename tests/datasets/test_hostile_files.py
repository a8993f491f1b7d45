"""Damaged, forged and special data files are read or refused in one line, without waiting and in little memory."""

from __future__ import annotations

import importlib
import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hybridnn.datasets import load_file
from hybridnn.datasets.user_file import load_samples
from hybridnn.errors import DataError, HybridnnError
from hybridnn.utils import files as npz_files

X = np.arange(12.0).reshape(4, 3)
LABELS = np.array([2, 0, 1, 2])
CSV = b"a,b,y\n1,2.5,0\n3,4e1,1\n-5,6,1\n"
NOBODY = 65534


def load(path: Path) -> Any:
    """Load as training data."""
    return load_file(path, () if path.suffix == ".npz" else ["y"])


def sample(path: Path) -> Any:
    """Load as samples to predict from."""
    return load_samples(path, 3, ["y"])


def npy(header: str, payload: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An ``.npy`` file with any header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + payload


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


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail where more than 16 MB are allocated at once, without the modules that read tables."""
    importlib.import_module("pandas")
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def refused(path: Path, read: Callable[[Path], Any] = load) -> str:
    """The one line that refuses a file, without the folder's name."""
    with pytest.raises(DataError) as error:
        read(path)
    text = str(error.value)
    assert path.name[:40] in text or repr(path.name[:40])[1:-1] in text
    assert text.isprintable(), text
    return text


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (header((1_000_000, 1_000_000)), "claims shape (1000000, 1000000) of float64, 8,000,000,000,000 bytes"),
        (header((2**40, 2**40)), "claims shape (1099511627776, 1099511627776)"),
        (header((-4, -3)), "claims shape (-4, -3)"),
        (header((4, 3), "|O"), "Object arrays cannot be loaded"),
        (header((2**70, 0)), "cannot read x_train: "),
        (header("(" * 4000 + ")" * 4000), "cannot read x_train: "),
        (header("4" * 5000), "cannot read x_train: "),
        (header((4, 3), "no such type"), "cannot read x_train: "),
        (header((4, 3)) + " " * 60_000, "cannot read x_train: "),
    ],
)
def test_array_that_claims_what_the_file_does_not_hold(
    tmp_path: Path, little_memory: None, text: str, message: str, method: int
) -> None:
    payload = b"" if "2**70" in text else X.tobytes()
    assert message in refused(archive(tmp_path / "mine.npz", npy(text, payload), method))


def test_archive_that_claims_what_it_does_not_hold(tmp_path: Path, little_memory: None) -> None:
    size = 0xFFFFFF00
    text = header((size - 128,), "|u1").ljust(128 - 11)
    path = archive(tmp_path / "mine.npz", npy(text, b"\0" * 64))
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", size, size)  # compressed, and not
    path.write_bytes(content)
    # Newer versions of Python, and older ones that are patched, know where an entry ends and compare it with the next.
    compares = hasattr(zipfile.ZipInfo, "_end_offset")
    assert ("Overlapped entries" if compares else "4,294,966,912 bytes; the file holds ") in refused(path)


def test_archive_that_expands_beyond_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_memory: None
) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(bomb())
    monkeypatch.setattr(npz_files, "memory_bytes", lambda: 1 << 22)
    text = refused(path)
    assert "cannot read the file: its arrays take 8,0" in text
    assert "and this machine has 4,194,304" in text
    with pytest.raises(DataError, match="its arrays take"):
        load_samples(path, 1000)


def bomb() -> bytes:
    """Eight megabytes in eight kilobytes."""
    file = io.BytesIO()
    np.savez_compressed(file, x_train=np.zeros((1000, 1000)), y_train=np.arange(1000) % 2)
    assert len(file.getvalue()) < 20_000
    return file.getvalue()


def test_physical_memory_is_that_of_the_system() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert npz_files.memory_bytes() == int(lines["MemTotal"].split()[0]) * 1024


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_without_a_limit_of_expansion_is_refused(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "mine.npz", npy(header((4, 3)), X.tobytes()), method)
    assert f"compressed by method {method}" in refused(path)


def test_names_of_arrays_in_a_message_are_short_and_printable(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as file:
        for number in range(500):
            file.writestr(f"{number}\n{'x' * 300}", npy(header((1,)), b"\0" * 8))
    text = refused(tmp_path / "mine.npz")
    assert "and 488 more" in text
    assert len(text) < 2000


@pytest.fixture(params=["fifo", "device", "folder", "loop", "socket", "too long", "nul", "broken link"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes a path that is not a data file, with any suffix."""

    def make(suffix: str) -> Path:
        path = tmp_path / f"mine{suffix}"
        match request.param:
            case "fifo":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case "folder":
                path.mkdir()
            case "loop":
                path.symlink_to(path)
            case "socket":
                os.mknod(path, 0o140644)
            case "too long":
                path = tmp_path / f"{'n' * 300}{suffix}"
            case "nul":
                path = tmp_path / f"mi\0ne{suffix}"
            case "broken link":
                path.symlink_to(tmp_path / "gone")
        return path

    return make


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("read", [load, sample])
def test_what_is_no_regular_file(
    strange: Callable[[str], Path], suffix: str, read: Callable[[Path], Any], little_memory: None
) -> None:
    refused(strange(suffix), read)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("read", [load, sample])
def test_file_in_a_folder_that_may_not_be_read(tmp_path: Path, suffix: str, read: Callable[[Path], Any]) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / f"mine{suffix}").touch()
    folder.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
        assert "Permission denied" in refused(folder / f"mine{suffix}", read)
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


@pytest.mark.timeout(60)
def test_table_that_is_larger_than_the_memory(tmp_path: Path, little_memory: None) -> None:
    with (tmp_path / "mine.csv").open("wb") as file:
        file.write(b"a,y\n1,2\n")
        file.truncate(1 << 40)  # a terabyte of zeros, which takes no space
    assert "the file has 1,099,511,627,776 bytes, and this machine has" in refused(tmp_path / "mine.csv")


def test_header_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_memory: None) -> None:
    monkeypatch.setattr("hybridnn.datasets.table_file.LINE_CHARACTERS", 1 << 20)
    (tmp_path / "mine.csv").write_bytes(b"a,y" * (1 << 20))
    assert "line 1: longer than 1,048,576 characters" in refused(tmp_path / "mine.csv")


@pytest.mark.timeout(100)
def test_very_wide_table(tmp_path: Path) -> None:
    columns = 200_000
    names = ",".join(f"c{number}" for number in range(columns))
    (tmp_path / "mine.csv").write_text(f"{names},y\n{'1,' * columns}0\n{'2,' * columns}1\n")
    found = load(tmp_path / "mine.csv")
    assert (found.features, found.inputs[0], found.inputs[-1]) == (columns, "c0", f"c{columns - 1}")
    with pytest.raises(HybridnnError) as error:
        load_file(tmp_path / "mine.csv", ["absent"])
    assert "and 199,989 more" in str(error.value)
    assert len(str(error.value)) < 1000


def test_long_cells_and_strange_names_make_short_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"a,y\n{'z' * 100_000},1\n")
    assert len(refused(path)) < 1000
    path.write_text('"a\nb",c\n1,2\n')
    with pytest.raises(HybridnnError) as error:
        load(path)
    assert str(error.value).isprintable()
    path.write_text('a,b,y\n"1,2,0\n' + "3,4,1\n" * 100_000)
    assert "row 1: a quotation mark is not closed" in refused(path)


def outcome(path: Path, content: bytes, read: Callable[[Path], Any]) -> None:
    """Read a file of these bytes: data, or one line that names it."""
    path.write_bytes(content)
    text = path.name
    try:
        read(path)
    except HybridnnError as error:
        text = str(error)
    assert path.name in text
    assert text.isprintable()
    assert len(text) < 2000


def flipped(content: bytes, flips: list[tuple[int, int]], cut: int, tail: bytes) -> bytes:
    """Change bits, cut the end off, and put another one there."""
    changed = bytearray(content)
    for place, bit in flips:
        changed[place % len(changed)] ^= 1 << bit
    return bytes(changed[: len(changed) - cut % len(changed)]) + tail


FLIPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), max_size=6)
CUTS = st.one_of(st.just(0), st.integers(0, 5000))
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sound_npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, x_train=X, y_train=LABELS, x=X, x_test=X[:2], y_test=LABELS[:2])
    return file.getvalue()


@FUZZ
@given(st.booleans(), st.booleans(), FLIPS, CUTS, st.binary(max_size=20))
def test_damaged_npz(
    tmp_path: Path, compressed: bool, training: bool, flips: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    content = flipped(sound_npz(np.savez_compressed if compressed else np.savez), flips, cut, tail)
    outcome(tmp_path / "mine.npz", content, load if training else sample)


@FUZZ
@given(st.binary(max_size=300), st.binary(max_size=200), st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
@example(b"\x93NUMPY\x03\x00\x10\x00\x00\x00" + b" " * 16, b"", zipfile.ZIP_STORED)
@example(b"", b"", zipfile.ZIP_STORED)
def test_npz_of_any_bytes(tmp_path: Path, start: bytes, text: bytes, method: int) -> None:
    for content in (start, npy("", b"")[:8] + struct.pack("<H", len(text)) + text + start):
        archive(tmp_path / "mine.npz", content, method)
        outcome(tmp_path / "mine.npz", (tmp_path / "mine.npz").read_bytes(), load)


@FUZZ
@given(
    st.lists(st.integers(-(2**65), 2**65), max_size=4).map(tuple),
    st.sampled_from(["<f8", "|u1", "<U0", "|V0", "<c16", "|b1", "<M8[s]", "|O", "<f2", ">i8", "<U100000000"]),
    st.booleans(),
)
def test_npz_of_any_shape(tmp_path: Path, shape: tuple[int, ...], descr: str, sound: bool) -> None:
    payload = X.tobytes() if sound else b""
    archive(tmp_path / "mine.npz", npy(header(shape, descr), payload))
    outcome(tmp_path / "mine.npz", (tmp_path / "mine.npz").read_bytes(), load)


@FUZZ
@given(st.booleans(), FLIPS, st.integers(0, 40), st.binary(max_size=40))
def test_damaged_csv(tmp_path: Path, training: bool, flips: list[tuple[int, int]], cut: int, tail: bytes) -> None:
    outcome(tmp_path / "mine.csv", flipped(CSV, flips, cut, tail), load if training else sample)


CELLS = st.one_of(
    st.sampled_from(["", "nan", "1e999", "-0", "1_0", '"', "a", "y", " y ", "\ufeff", "1" * 5000, "٣", "0x1", "1e5"]),
    st.text(max_size=5),
)


@FUZZ
@given(st.lists(st.lists(CELLS, max_size=4), max_size=4), st.sampled_from(["\n", "\r", "\r\n"]), st.booleans())
def test_csv_of_any_cells(tmp_path: Path, rows: list[list[str]], end: str, training: bool) -> None:
    text = end.join([",".join(row) for row in rows])
    content = text.encode("utf-8", "surrogatepass")
    outcome(tmp_path / "mine.csv", content, load if training else sample)
    outcome(tmp_path / "mine.csv", b"a,b,y" + end.encode() + content, load if training else sample)
