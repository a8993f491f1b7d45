"""A serial test in the file after ``case_mixed.py``."""

from __future__ import annotations


def test_serial_in_the_next_file() -> None:
    pass
