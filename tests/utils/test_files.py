"""Files: reading within limits, atomic writing, and ``.npz`` files, sound and damaged."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.utils import files
from hybridnn.utils.files import (
    FileError,
    folder_names,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    read_npz,
    read_tail,
    read_text,
    read_toml,
    replace_atomically,
    write_atomically,
)
from mpi_runner.slowness import deadline
from reference.damaged_files import UNREADABLE

READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: read_bytes(path, 1000),
    "text": lambda path: read_text(path, 1000),
    "json": read_json,
    "toml": read_toml,
    "lines": lambda path: list(read_lines(path)),
    "tail": read_tail,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("strange", UNREADABLE)
def test_anything_but_a_regular_file_is_refused_at_once(strange: str, reader: str, tmp_path: Path) -> None:
    path, reason = UNREADABLE[strange](tmp_path)
    if strange == "endless" and reader in ("lines", "tail"):
        return  # which read a part of it
    with pytest.raises(FileError, match=f"cannot be read: {reason}") as caught:
        READERS[reader](path)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(str(path) if str(path).isprintable() else repr(str(path)))
    assert caught.value.is_missing == reason.startswith("No such file")


def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("there")
        with pytest.raises(FileError, match="there: cannot be read: No such device"):
            read_bytes("there", 10)


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError, match="directory"):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_link_to_a_file_is_read_and_so_is_proc(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("value")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link", 5) == "value"
    assert read_text("/proc/self/comm", 100)  # of size 0, before it is read


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 101)
    assert read_bytes(tmp_path / "file", 101) == b"x" * 101
    with pytest.raises(FileError, match=r"file: cannot be read: larger than 100 bytes$"):
        read_bytes(tmp_path / "file", 100)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 10_000, "recursion limit"),
        (b"[" * 150 + b"]" * 150, "nested more than 100 deep"),
        (b"1" * 5_000, "out of range"),
        (b"[1, 9223372036854775808]", "an integer of more than 64 bits"),
        (b"1e999", "not finite"),
        (b"NaN", "expected value"),
        (b'"\\ud800"', "escape"),
        (b"\xff", "expected value"),
        (b"", "EOF"),
    ],
)
def test_json_with_dangerous_values_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(FileError, match=rf"a\.json: is not valid JSON: .*{reason}"):
        read_json(tmp_path / "a.json")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a = " + b"[" * 10_000, "is not valid TOML: nested too deep"),
        (b"a = " + b"{a=" * 10_000, "is not valid TOML: nested too deep"),
        (b".".join([b"a"] * 500) + b" = 1", "is not valid TOML: nested more than 100 deep"),
        (b".".join([b"a"] * 300_000) + b" = 1", "is not valid TOML: a line with too many dots"),
        (b"a = " + b"1" * 5_000, "is not valid TOML: "),
        (b"a = 0x" + b"f" * 5_000, "is not valid TOML: an integer of more than 64 bits"),
        (b"a = 9223372036854775808", "is not valid TOML: an integer of more than 64 bits"),
        (b"\xff", "is not text in UTF-8: "),
        (b"# " + b"x" * (64 << 20), "cannot be read: larger than 67,108,864 bytes"),
    ],
)
def test_toml_with_dangerous_values_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "a.toml").write_bytes(text)
    with pytest.raises(FileError, match=rf"a\.toml: {reason}"):
        read_toml(tmp_path / "a.toml")


def test_infinities_are_allowed_in_toml_and_on_request_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = inf\nb = [-9223372036854775808]")
    assert read_toml(tmp_path / "a.toml") == {"a": float("inf"), "b": [-(2**63)]}
    (tmp_path / "a.json").write_text("[Infinity]")
    assert read_json(tmp_path / "a.json", finite=False) == [float("inf")]


def test_an_endless_line_ends_the_iteration(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    os.truncate(tmp_path / "file", 1 << 40)
    first, second, third = read_lines(tmp_path / "file")
    assert (first, second, len(third)) == (b"one\n", b"two\n", 1 << 20)
    assert read_tail(tmp_path / "file", 10) == b"\0" * 10


def test_names_of_a_folder(tmp_path: Path) -> None:
    assert folder_names(tmp_path / "none") == []
    (tmp_path / "b").touch()
    (tmp_path / "a").touch()
    assert folder_names(tmp_path) == ["a", "b"]
    with pytest.raises(FileError, match=r"/a: cannot be read: Not a directory"):
        folder_names(tmp_path / "a")
    with pytest.raises(FileError, match=r"a\\x00b': cannot be read: embedded null"):
        folder_names(tmp_path / "a\0b")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=VALUES)
def test_json_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value)
    if "\\ud" in text:  # lone surrogates, which are not text, and pairs, which Python writes so
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    assert parse_json(text) == json.loads(text)


@given(content=st.binary(max_size=200), cut=st.integers(0, 40), flip=st.integers(0, 320), source=st.integers(0, 2))
@settings(max_examples=400)
def test_any_bytes_are_a_value_or_one_line(
    content: bytes, cut: int, flip: int, source: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    references = {read_json: json.loads, read_toml: lambda data: files.tomllib.loads(data.decode())}
    good = b'{"a": [1, 2.5, "x", null], "b": {"c": true}}', b'a = [1, 2.5, "x"]\n[b]\nc = 1979-05-27\n'
    damaged = bytearray(content if source == 2 else good[source][:cut])
    if damaged:
        damaged[flip // 8 % len(damaged)] ^= 1 << flip % 8
    path.write_bytes(damaged)
    for read, reference in references.items():
        message = ""
        try:
            assert read(path) == reference(bytes(damaged))  # type: ignore[operator]
        except FileError as error:
            message = str(error)
        assert message.isprintable()
        assert message.startswith(f"{path}: " if message else "")


@pytest.mark.parametrize("value", [10**5000, "x" * 10**6, [[[0] * 1000] * 1000], "\0\n\x1b"], ids=type)
def test_any_value_of_a_setting_can_be_shown(value: object) -> None:
    message = str(SettingError("training.epochs", value, "must be less"))
    assert message.isprintable()
    assert len(message) < 1100
    assert message.endswith(": must be less")


# -- atomic writing ---------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from hybridnn.utils.files import replace_atomically
def fill(file):
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
replace_atomically(Path(sys.argv[1]), fill)
"""


def test_writing_replaces_the_file_and_creates_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "ä")
    assert path.read_bytes() == "ä".encode()
    write_atomically(path, [b"one", b"two"])
    assert path.read_bytes() == b"onetwo"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, exclusive: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_atomically(path, fill, exclusive=exclusive)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_partial_file_of_a_killed_process_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=deadline(60))
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    write_atomically(path, "new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["file"])


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"file/inside cannot be written: (File exists|Not a directory)"):
        write_atomically(tmp_path / "file" / "inside", "text")


# -- .npz -------------------------------------------------------------------------------------------------------------

NAME = "layers.0.weight"


def saved(folder: Path) -> Path:
    path = folder / "weights.npz"
    np.savez_compressed(path, **{NAME: np.random.default_rng(0).normal(size=(30, 20))})
    return path


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = read_npz(path)
    assert list(weights) == [NAME]
    np.testing.assert_array_equal(weights[NAME], np.random.default_rng(0).normal(size=(30, 20)))


def test_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.ones(3))
    with pytest.raises(DataError, match=r"^model\.init_from: not an \.npz file \(numpy\.savez writes them\)$"):
        read_npz(tmp_path / "weights.npy", "model.init_from")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz: there is no such file"):
        read_npz(tmp_path / "gone.npz")
    with pytest.raises(DataError, match="Is a directory"):
        read_npz(tmp_path)


def test_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[500:600] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"weights\.npz: cannot read layers\.0\.weight: "):
        read_npz(path)


@pytest.mark.parametrize(
    ("field", "value", "message"), [(10, 99, "That compression method is not supported"), (8, 1, ".* is encrypted")]
)
def test_unsupported_members_are_refused(tmp_path: Path, field: int, value: int, message: str) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + field] = value  # compression method or flags in the central directory
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"weights\.npz: cannot read layers\.0\.weight: {message}"):
        read_npz(path)
