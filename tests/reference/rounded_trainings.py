"""Trainings whose gradients are rounded between nodes, and a serial replay that rounds the same sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridnn import ProcessGrid, Trainer
from hybridnn.comm.blocks import block_sizes, block_slice
from reference import network as net
from reference import serial
from reference.cases import Case, assert_arrays_close, check_state, data, plan_of, reference, run
from reference.network import Array, Network, Weights
from reference.rounding import rounded_sum

CASES = (
    Case(optimizer="adam", clip_norm=0.3),
    Case(classification=False, optimizer="nesterov", samples=31, residual=True),
    Case(optimizer="plain", samples=5, batch_size=3),
)
"""With clipping, a last minibatch of one sample, and minibatches of fewer samples than there may be ranks."""

WORDS = ("bfloat16", "float16")

Sharers = Sequence[Sequence[int]]
"""Batch ranks whose gradients are added up before they are rounded."""


def part_of_gradient(network: Network, weights: Weights, x: Array, y: Array, part: Array) -> Weights:
    """What some samples of a minibatch add to the gradient of its mean loss."""
    share = len(part) / len(x)
    if not share:
        return {name: np.zeros_like(array) for name, array in weights.items()}
    _, gradients = net.gradients(network, weights, x[part], y[part])
    return {name: share * gradient for name, gradient in gradients.items()}


def samples_of(rank: int, batch: int, microbatches: int, count: int) -> Array:
    """Places in a minibatch of the samples of a batch rank: its block of every microbatch."""
    whole = np.split(np.arange(count), np.cumsum(block_sizes(count, microbatches))[:-1])
    return np.concatenate([places[block_slice(len(places), batch, rank)] for places in whole])


def replay(case: Case, words: str, batch: int, sharers: Sharers, microbatches: int = 1) -> serial.Outcome:
    """The training by its definition, with one rounded gradient from every group of sharers."""

    def gradients(network: Network, weights: Weights, x: Array, y: Array) -> tuple[float, Weights]:
        loss = net.loss(network, net.forward(network, weights, x)[0], y)
        parts = [samples_of(rank, batch, microbatches, len(x)) for rank in range(batch)]
        of_ranks = [part_of_gradient(network, weights, x, y, part) for part in parts]
        total = {
            name: rounded_sum(words, [sum(of_ranks[rank][name] for rank in ranks) for ranks in sharers])
            for name in weights
        }
        return loss, total

    return serial.train(case.network, plan_of(case), *data(case), gradients_of=gradients)


def check_rounded(case: Case, words: str, grid: ProcessGrid, sharers: Sharers, **settings: Any) -> Trainer:
    """Train on `grid` and compare what a user can see with the replay, and see that it is not the usual training."""
    trainer = run(case, grid, wire_dtype=words, **settings)
    where = f"{case} as {words} on {grid!r}"
    expected, usual = replay(case, words, grid.batch, sharers, trainer.layout.microbatches), reference(case)
    assert_arrays_close(trainer.weights(), expected.weights, f"{where}: weights")
    check_state(trainer, expected, where)
    largest = max(np.max(np.abs(expected.gradients[name] - usual.gradients[name])) for name in usual.gradients)
    assert largest > 1e-6 * max(np.max(np.abs(gradient)) for gradient in usual.gradients.values())
    return trainer


def alone(ranks: int) -> Sharers:
    return [[rank] for rank in range(ranks)]
