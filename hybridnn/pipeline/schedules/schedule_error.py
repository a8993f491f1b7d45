"""The error of a schedule that cannot be run."""

from __future__ import annotations

from hybridnn.errors import HybridnnError
from hybridnn.pipeline.schedules.instructions import Instruction

__all__ = ["ScheduleError"]


class ScheduleError(HybridnnError):
    """A schedule breaks a rule.

    Parameters
    ----------
    stage : int
        Whose list breaks it, from 0.
    place : int
        Number of the instruction in that list, from 0; the list's length where something is missing.
    instruction : Instruction or None
        The instruction there; None at the end of the list.
    reason : str
        The rule and how it is broken, in words.
    """

    def __init__(self, stage: int, place: int, instruction: Instruction | None, reason: str) -> None:
        where = "end of the list" if instruction is None else f"instruction {place} ({instruction})"
        super().__init__(f"stage {stage}, {where}: {reason}")
        self.stage = stage
        self.place = place
        self.instruction = instruction
        self.reason = reason
