"""Files, read within limits and written atomically, and texts; `hostile_files` has malformed files."""

import errno
import os
import signal
import tracemalloc
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.utils.files import (
    FileError,
    folder_names,
    memory_bytes,
    open_regular,
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
from hybridnn.utils.text import (
    counted,
    format_bytes,
    format_ranks,
    format_seconds,
    name_numbers,
    name_ranks,
    parse_ranks,
)


def test_the_error_of_a_missing_file_begins_with_its_name(tmp_path: Path) -> None:
    for name, is_missing in (("gone", True), ("a\nb", True), ("file/inside", False)):
        (tmp_path / "file").touch()
        path = tmp_path / name
        with pytest.raises(FileError, match="cannot be read: N") as caught:
            read_bytes(path, 10)
        assert str(caught.value).startswith(str(path) if "\n" not in name else repr(str(path)))
        assert caught.value.is_missing == is_missing


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
    assert len(read_text("/proc/self/comm", 100)) > 1  # of size 0, before it is read


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 30)
    tracemalloc.start()
    assert read_bytes(tmp_path / "file", 1 << 30) == b"x" * 30
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 101)
    assert read_bytes(tmp_path / "file", 101) == b"x" * 101
    with pytest.raises(FileError, match=r"file: cannot be read: larger than 100 bytes$"):
        read_bytes(tmp_path / "file", 100)


def test_infinities_are_allowed_in_toml_alone(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = inf\nb = [-9223372036854775808]")
    assert read_toml(tmp_path / "a.toml") == {"a": float("inf"), "b": [-(2**63)]}
    (tmp_path / "a.json").write_text("[Infinity]")
    with pytest.raises(FileError, match=r"a\.json: is not valid JSON"):
        read_json(tmp_path / "a.json")


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


@pytest.mark.parametrize("value", [10**5000, "x" * 10**6, [[[0] * 1000] * 1000], "\0\n\x1b"], ids=type)
def test_any_value_of_a_setting_can_be_shown(value: object) -> None:
    message = str(SettingError("training.epochs", value, "must be less"))
    assert message.isprintable()
    assert len(message) < 1100
    assert message.endswith(": must be less")


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

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        replace_atomically(path, fill)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    write_atomically(path, "new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["file"])


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"file/inside cannot be written: (File exists|Not a directory)"):
        write_atomically(tmp_path / "file" / "inside", "text")


def test_arrays_are_read_by_name_and_an_array_alone_is_refused(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(30, 20))
    np.savez_compressed(tmp_path / "weights.npz", **{"layers.0.weight": array})
    weights = read_npz(tmp_path / "weights.npz")
    assert list(weights) == ["layers.0.weight"]
    np.testing.assert_array_equal(weights["layers.0.weight"], array)
    np.save(tmp_path / "weights.npy", array)
    with pytest.raises(DataError, match=r"weights\.npy: not an \.npz file \(numpy\.savez writes them\)$"):
        read_npz(tmp_path / "weights.npy")


def test_physical_memory_is_that_of_the_system() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert memory_bytes() == int(lines["MemTotal"].split()[0]) * 1024


@given(st.sets(st.integers(0, 40)))
def test_sets_of_ranks_are_read_as_they_are_written(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(ranks))


def test_sets_of_ranks_are_short() -> None:
    texts: dict[str, list[int]] = {"": [], "3": [3], "0, 1": [1, 0], "0-2, 5, 7, 8": [0, 1, 2, 5, 7, 8]}
    texts |= {"1-13 by 4": [1, 5, 9, 13], "1, 5, 9": [1, 5, 9]}
    assert [format_ranks(ranks) for ranks in texts.values()] == list(texts)


def test_nouns_are_in_the_plural_unless_there_is_one() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert counted(2, "process") == "2 processes"
    assert name_ranks([3]) == "rank 3"
    assert name_numbers("rank", [9, 8, 7, 5, 0, 1]) == "ranks 0, 1, 5, 7-9"


def test_sizes_have_binary_or_decimal_units() -> None:
    binary = [format_bytes(nbytes, binary=True) for nbytes in (8, 1 << 16, 999 << 20, 3 << 39)]
    assert binary == ["8 B", "64 KiB", "999 MiB", "1.5 TiB"]
    sizes = (8, 999.7, 1000, 65_536, 234_567_890, 5e15)
    assert [format_bytes(nbytes) for nbytes in sizes] == ["8 B", "1000 B", "1 kB", "65.5 kB", "235 MB", "5000 TB"]
    one_decimal = [format_bytes(nbytes, decimals=1) for nbytes in sizes]
    assert one_decimal == ["8 B", "1000 B", "1.0 kB", "65.5 kB", "234.6 MB", "5000.0 TB"]


def test_seconds() -> None:
    assert [format_seconds(s) for s in (9.3e-7, 0.012, 3.25)] == ["0.93 us", "12 ms", "3.25 s"]
    assert format_seconds(5e-5, "µs") == "50 µs"
