"""What a prediction says."""

from __future__ import annotations

from dataclasses import dataclass

from hybridnn.cost.prediction.workload import Layout

__all__ = ["Parts", "Prediction"]


@dataclass(frozen=True)
class Parts:
    """Seconds of a step, by where they go: the means over the ranks, which together are the whole step.

    Attributes
    ----------
    computing : float
        Passes, loss and update.
    communication : float
        Messages and collectives that the stage waits for.
    bubble : float
        Waiting for other stages.
    overhead : float
        Loading samples, copying messages, and Python between instructions.
    """

    computing: float
    communication: float
    bubble: float
    overhead: float


@dataclass(frozen=True)
class Prediction:
    """What a step of a layout is expected to cost.

    Attributes
    ----------
    layout : Layout
    seconds_per_step : float
        Per minibatch; in the long run, where minibatches overlap.
    seconds_per_epoch : float
        With filling and emptying the pipeline.
    parts : Parts
    communication_hidden : float
        Seconds per step of communication that passes behind computing.
    bytes_per_step : int
        Sent by all ranks, counted by the rule of ``hybridnn.comm.accounting``.
    memory_bytes : int
        Of the rank that needs most.
    instructions : dict
        Seconds per step by kind of instruction, the mean over the stages: ``forward``, ``backward``, ``input
        gradient``, ``weight gradient``, ``recompute``, ``reduce gradients``, ``loss``, ``update``; collectives of the
        model group are part of the passes.
    largest_collective : tuple of (str, int, float)
        Name, bytes and seconds per step of the communication that takes the longest.
    """

    layout: Layout
    seconds_per_step: float
    seconds_per_epoch: float
    parts: Parts
    communication_hidden: float
    bytes_per_step: int
    memory_bytes: int
    instructions: dict[str, float]
    largest_collective: tuple[str, int, float]
