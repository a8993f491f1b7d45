"""The file after a mixed one."""

from __future__ import annotations


def test_serial_in_the_next_file() -> None:
    pass
