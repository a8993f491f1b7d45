"""Text helpers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.utils.text import (
    counted,
    format_bytes,
    format_ranks,
    format_seconds,
    name_numbers,
    name_ranks,
    parse_ranks,
)


@given(st.sets(st.integers(0, 40)))
def test_sets_of_ranks_are_read_as_they_are_written(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 5, 7, 8], "0-2, 5, 7, 8"),
        ([1, 5, 9, 13], "1-13 by 4"),
        ([1, 5, 9], "1, 5, 9"),
    ],
)
def test_sets_of_ranks_are_short(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


def test_nouns_are_in_the_plural_unless_there_is_one() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert counted(2, "process") == "2 processes"
    assert name_ranks([3]) == "rank 3"
    assert name_numbers("rank", [9, 8, 7, 5, 0, 1]) == "ranks 0, 1, 5, 7-9"


@pytest.mark.parametrize(
    ("nbytes", "text"), [(8, "8 B"), (1 << 16, "64 KiB"), (999 << 20, "999 MiB"), (3 << 39, "1.5 TiB")]
)
def test_binary_units(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes, binary=True) == text


@pytest.mark.parametrize(
    ("nbytes", "digits", "one_decimal"),
    [
        (8, "8 B", "8 B"),
        (999.7, "1000 B", "1000 B"),
        (1000, "1 kB", "1.0 kB"),
        (65_536, "65.5 kB", "65.5 kB"),
        (234_567_890, "235 MB", "234.6 MB"),
        (5e15, "5000 TB", "5000.0 TB"),
    ],
)
def test_decimal_units(nbytes: float, digits: str, one_decimal: str) -> None:
    assert format_bytes(nbytes) == digits
    assert format_bytes(nbytes, decimals=1) == one_decimal


def test_seconds() -> None:
    assert [format_seconds(s) for s in (9.3e-7, 0.012, 3.25)] == ["0.93 us", "12 ms", "3.25 s"]
    assert format_seconds(5e-5, "µs") == "50 µs"
