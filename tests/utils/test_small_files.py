"""Small files: whatever lies there, either what it holds or one line that names it, and never a wait."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridnn.errors import SettingError
from hybridnn.utils import files as small_files
from hybridnn.utils.files import (
    FileError,
    folder_names,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    read_tail,
    read_text,
    read_toml,
)
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
def test_what_is_no_regular_file_is_refused_at_once(strange: str, reader: str, tmp_path: Path) -> None:
    path, reason = UNREADABLE[strange](tmp_path)
    if strange == "endless" and reader in ("lines", "tail"):
        return  # of which one part is read
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


def test_a_file_may_have_the_most_bytes_and_no_more(tmp_path: Path) -> None:
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
def test_json_that_programs_fail_on_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
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
def test_toml_that_programs_fail_on_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "a.toml").write_bytes(text)
    with pytest.raises(FileError, match=rf"a\.toml: {reason}"):
        read_toml(tmp_path / "a.toml")


def test_infinities_are_values_of_toml_and_of_json_that_may_hold_them(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = inf\nb = [-9223372036854775808]")
    assert read_toml(tmp_path / "a.toml") == {"a": float("inf"), "b": [-(2**63)]}
    (tmp_path / "a.json").write_text("[Infinity]")
    assert read_json(tmp_path / "a.json", finite=False) == [float("inf")]


def test_a_line_that_never_ends_is_the_last(tmp_path: Path) -> None:
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
    if "\\ud" in text:  # lone halves of characters, which are no text, and pairs, which Python writes so
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    assert parse_json(text) == json.loads(text)


@given(content=st.binary(max_size=200), cut=st.integers(0, 40), flip=st.integers(0, 320), source=st.integers(0, 2))
@settings(max_examples=400)
def test_any_bytes_are_a_value_or_one_line(
    content: bytes, cut: int, flip: int, source: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    references = {read_json: json.loads, read_toml: lambda data: small_files.tomllib.loads(data.decode())}
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
