"""Which cases to run on which grid: every layout meets many trainings, and every training many layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product

from reference.cases import OPTIMIZERS, SCHEDULES, Case

SPLITS = ("columns", "alternating")
DISTRIBUTIONS = ("local", "scatter", "scatter-broadcast")
AMOUNTS = ((37, 10), (31, 10), (9, 20), (5, 3))
"""Samples and minibatch: short last minibatches of 7 and of 1, more room than samples, fewer samples than ranks."""


def grid_shapes(ranks: int) -> list[tuple[int, int]]:
    """Every (batch, model) of so many ranks."""
    return [(ranks // model, model) for model in range(1, ranks + 1) if ranks % model == 0]


def sizes_for(model: int, split: str, residual: bool, classification: bool) -> tuple[int, ...]:
    """Uneven widths that `model` ranks can hold.

    With ``alternating`` every second layer may have fewer outputs than ranks: such a layer has 1 (regression) or 3.
    """
    outputs = max(4, model) if split == "columns" else (3 if classification else 1)
    if residual:
        wide = max(6, model)
        return (wide, wide, wide, wide, wide + 3, wide + 3, outputs)
    hidden = (13, 7, 11) if model <= 7 or split == "alternating" else (13, 9, 11)
    return (5, *hidden, outputs)


def layouts(shape: tuple[int, int]) -> Iterator[Case]:
    """Every split, distribution and overlap on a grid, with tasks, amounts, schedules and optimizers taking turns."""
    turns = cycle(
        zip(
            cycle(OPTIMIZERS),
            cycle(SCHEDULES),
            cycle((None, 0.3, 1e3)),
            cycle(AMOUNTS),
            cycle(("tanh", "selu", "relu", "sigmoid", "identity")),
            strict=False,
        )
    )
    combinations = product(SPLITS, DISTRIBUTIONS, (True, False), (False, True))
    for split, distribution, overlap, residual in combinations:
        optimizer, schedule, clip_norm, (samples, batch_size), activation = next(turns)
        classification = (len(optimizer) + samples + residual) % 2 == 0
        yield Case(
            sizes_for(shape[1], split, residual, classification),
            classification=classification,
            activation=activation,
            residual=residual,
            optimizer=optimizer,
            schedule=schedule,
            clip_norm=clip_norm,
            samples=samples,
            batch_size=batch_size,
            model_split=split,
            overlap=overlap,
            distribution=distribution,
        )


def trainings(shape: tuple[int, int]) -> Iterator[Case]:
    """Every optimizer, task and residual setting on a grid, both splits taking turns."""
    splits = cycle(SPLITS)
    for optimizer, classification, residual in product(OPTIMIZERS, (True, False), (True, False)):
        split = next(splits) if residual else SPLITS[len(optimizer) % 2]
        case = Case(classification=classification, residual=residual, optimizer=optimizer, model_split=split)
        yield replace(case, sizes=sizes_for(shape[1], split, residual, classification))
