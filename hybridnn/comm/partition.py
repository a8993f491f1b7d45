"""The block partition: the one rule by which rows, samples and layers are dealt out.

The first ``n mod p`` parts get one item more than the others. Nothing has to be divisible.
"""

from __future__ import annotations

__all__ = ["block_bounds", "block_size", "block_sizes", "block_slice"]


def block_sizes(items: int, parts: int) -> list[int]:
    """Size of every part when `items` are dealt to `parts`; parts may be empty when there are more of them."""
    quotient, remainder = divmod(items, parts)
    return [quotient + (part < remainder) for part in range(parts)]


def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
    """First item of `part` and the one after its last."""
    quotient, remainder = divmod(items, parts)
    start = part * quotient + min(part, remainder)
    return start, start + quotient + (part < remainder)


def block_slice(items: int, parts: int, part: int) -> slice:
    """The items of `part` as a slice."""
    return slice(*block_bounds(items, parts, part))


def block_size(items: int, parts: int, part: int) -> int:
    """Number of items of `part`."""
    return items // parts + (part < items % parts)
