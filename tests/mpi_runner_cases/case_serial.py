"""A serial test in the file after ``case_green.py``."""

from __future__ import annotations


def test_in_the_next_file() -> None:
    pass
