"""Budgets of A6."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.assignment import Bound, Case, Variant
from hybridnn_course.measuring import measured_bounds

NO_AMOUNT = 1 << 60
"""Stands for a measured amount that a submission has replaced by something else."""


def store_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Buffers, and bytes that were copied."""
    inputs = case.inputs[0]
    nbytes = 8 * inputs["size"]
    most = sum(step[0] == "update" for step in inputs["steps"])
    return [
        Bound("buffers", _amount(answer, "buffers"), inputs["versions"], inputs["versions"] + most / 2),
        Bound("bytes copied", _amount(answer, "bytes copied"), 0, nbytes * most / 2),
    ]


def stage_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Bytes that the stages held after forward passes, at the fullest moment of each."""
    needed = needed_bytes(case)
    return [Bound("bytes held", _amount(answer, "bytes held"), needed, 2 * needed)]


def needed_bytes(case: Case) -> int:
    """Inputs of the minibatches in flight; without replay their outputs, and with DDG their versions of the weights."""
    inputs = case.inputs[0]
    samples = [batch.shape[1] for batch in inputs["batches"]]
    needed = 0
    for k, layer in enumerate(inputs["layers"]):
        flight = len(inputs["layers"]) - k
        rows = layer.shape[1] + (0 if inputs["method"] == "fr" else layer.shape[0])
        of_step = [
            8 * (rows * sum(samples[max(0, t + 1 - flight) : t + 1]))
            + layer.nbytes * _versions(inputs["method"], flight, t)
            for t in range(len(samples))
        ]
        needed += max(of_step)
    return needed


def _versions(method: str, flight: int, minibatch: int) -> int:
    """Weight versions of the minibatches in flight after the forward pass of one of them."""
    if method != "ddg":
        return 1
    return len({max(0, t - (flight - 1)) for t in range(max(0, minibatch + 1 - flight), minibatch + 1)})


def predict_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Loops over elements, and temporary arrays."""
    return measured_bounds(answer)


def _amount(answer: Answer, name: str) -> int:
    """A measured amount, which comes from the process of a submission."""
    measured = answer.outputs[0].get(MEASURED)
    amount = measured.get(name) if isinstance(measured, dict) else None
    return amount if isinstance(amount, int) and amount >= 0 else NO_AMOUNT
