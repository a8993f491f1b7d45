"""Formulas of pipelines: time and memory of Kang 2019, Table 1, and time slots of the book chapter.

They count K equal stages and free messages, in the steady state. T_F and T_B are the times of the forward and of the
backward pass of a minibatch through the whole network, in seconds or any other unit. The functions raise a SettingError
for a number out of range.

"The chapter" is chapter 6, "Pipeline input and layer split", of a book about distributed machine learning.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridnn.utils.checks import require_choice, require_number, require_whole
from hybridnn_papers.formulas import Formula

KANG_METHODS = ("sequential", "ddg", "fr", "pipedream")
"""The methods of Kang 2019, Table 1, in its order."""


class StoredStates(NamedTuple):
    """What a stage stores at once: weight versions, and minibatches whose activations or inputs are kept."""

    weights: int
    activations: int
    inputs: int


def minibatch_time(method: str, stages: int, forward: float, backward: float, *, formula: Formula = "exact") -> float:
    """Time per minibatch of a method, Kang 2019, Table 1.

    ========== ==================== =========================
    method     printed              ``formula="exact"``
    ========== ==================== =========================
    sequential T_F + T_B            the same
    ddg        T_F + T_B / K        the same
    fr         T_F + T_B / K        T_F + (T_F + T_B) / K
    pipedream  (T_F + T_B) / K      the same
    ========== ==================== =========================

    The times of ``ddg`` and ``fr`` are those of orders with a barrier before each forward and each backward pass
    (``parallel.barriers``). Tables 3 and 4 have none; without them the times do not grow with K. Between barriers the
    printed time of features replay omits that every stage but the last computes its forward pass again before its
    backward pass (section 2.3, Table 4). A single stage recomputes nothing.
    """
    _require_method(method, stages)
    require_choice("formula", formula, ("exact", "paper"))
    require_number("forward", forward, at_least=0)
    require_number("backward", backward, at_least=0)
    if method == "sequential":
        return forward + backward
    if method == "pipedream":
        return (forward + backward) / stages
    recomputed = forward / stages if method == "fr" and formula == "exact" and stages > 1 else 0.0
    return forward + recomputed + backward / stages


def stored_states(method: str, stage: int, stages: int) -> StoredStates:
    """What device k = `stage` of K = `stages` stores, counted from 1 as in Kang 2019, sections 2.1 to 2.4 and Table 1.

    ``ddg`` and ``pipedream`` keep K - k + 1 intermediate states (sections 2.2.2 and 2.4.2), ``sequential`` one, and
    ``fr`` only inputs (section 2.3.1): K - k + 1 of them, the length of the queue in Table 4, beside the activations of
    the minibatch in work.
    """
    _require_method(method, stages)
    require_whole("stage", stage, 1, stages)
    delayed = stages - stage + 1
    if method == "sequential":
        return StoredStates(1, 1, 1)
    return StoredStates(1, 1, delayed) if method == "fr" else StoredStates(delayed, delayed, delayed)


def forward_slots(stages: int, inputs: int, *, pipelined: bool = True) -> int:
    """Time slots of the forward, or of the backward, passes of `inputs` inputs, the chapter's Figures 6.7 to 6.10.

    N M one after another; N + M - 1 in a pipeline, where GPU k begins k - 1 slots late and then computes M inputs.
    """
    require_whole("stages", stages, 1)
    require_whole("inputs", inputs, 1)
    return stages + inputs - 1 if pipelined else stages * inputs


def idle_slots(stages: int, inputs: int = 1) -> int:
    """Time slots of forward and backward passes in which a GPU is idle: 2 (N - 1), whatever the inputs.

    The chapter derives it for one input, "GPU idle time between forward and backward propagation".
    """
    return 2 * (forward_slots(stages, inputs) - inputs)


def utilisation(stages: int, inputs: int = 1) -> float:
    """Share of the time slots in which a GPU computes: 1/N for one input (the chapter), M/(N + M - 1) for M."""
    return inputs / forward_slots(stages, inputs)


def _require_method(method: str, stages: int) -> None:
    require_choice("method", method, KANG_METHODS)
    require_whole("stages", stages, 1)
