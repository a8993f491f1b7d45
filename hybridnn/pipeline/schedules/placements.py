"""Placements: on which stage of a pipeline a chunk of layers lives.

The virtual stages are numbered in the order of the network. K successive ones, from a multiple of K on, lie on
different stages, and are the chunks of one number there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The stage of every virtual stage."""

    name: str
    # From a chunk, the place of a virtual stage among the K of this chunk, and K, to the stage; and back to the place.
    swap: Callable[[int, int, int], int]

    def virtual(self, stage: int, chunk: int, stages: int) -> int:
        """The virtual stage of a chunk."""
        return chunk * stages + self.swap(chunk, stage, stages)

    def at(self, virtual: int, stages: int) -> tuple[int, int]:
        """Stage and chunk of a virtual stage."""
        chunk, place = divmod(virtual, stages)
        return self.swap(chunk, place, stages), chunk

    def stages(self, stages: int, chunks: int) -> list[int]:
        """The stage of each virtual stage."""
        return [self.at(virtual, stages)[0] for virtual in range(stages * chunks)]


LOOP = Placement("loop", lambda chunk, place, stages: place)
"""Virtual stage v on stage v mod K (Narayanan et al. 2021)."""

WAVES = Placement("waves", lambda chunk, place, stages: stages - 1 - place if chunk % 2 else place)
"""From the first stage to the last and back, any number of times (Liu et al. 2023, Hanayo); once: the V of Qi et al."""

PLACEMENTS = {placement.name: placement for placement in (LOOP, WAVES)}
