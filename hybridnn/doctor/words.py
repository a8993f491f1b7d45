"""Ranks, numbers, sizes and times in words."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["core_names", "counted", "duration", "rank_names", "size_of"]


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def rank_names(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 2, 5-9``."""
    return _named("rank", ranks)


def core_names(cores: Iterable[int]) -> str:
    """``core 3``, ``cores 0-7``."""
    return _named("core", cores)


def size_of(nbytes: float) -> str:
    """Bytes in the largest unit that leaves a number of 1 or more: ``8 B``, ``64 KiB``, ``23 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{_short(nbytes)} {unit}"
        nbytes /= 1024
    return f"{_short(nbytes)} TiB"


def duration(seconds: float) -> str:
    """``0.93 us``, ``12 ms``, ``3.2 s``."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def _named(noun: str, numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{noun}{'s' * (len(ordered) != 1)} {', '.join(parts)}"


def _short(number: float) -> str:
    """Three digits, and never an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
