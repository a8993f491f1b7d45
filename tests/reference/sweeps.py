"""Sweeps: the cases that run on each grid, so that layouts and trainings are combined in many ways."""

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from hybridnn import ProcessGrid
from reference.cases import OPTIMIZERS, SCHEDULES, Case

SPLITS = ("columns", "alternating")
DISTRIBUTIONS = ("local", "scatter", "scatter-broadcast")
AMOUNTS = ((37, 10), (31, 10), (9, 20), (5, 3))
"""Samples and batch size: last minibatches of 7 and of 1 sample, one small minibatch, and fewer samples than ranks."""


def grid_shapes(ranks: int) -> list[tuple[int, int]]:
    """All (batch, model) grids of `ranks` ranks."""
    return [(ranks // model, model) for model in range(1, ranks + 1) if ranks % model == 0]


def grids(comm: Any) -> list[ProcessGrid]:
    return [ProcessGrid(comm, batch=batch, model=model) for batch, model in grid_shapes(comm.size)]


def sizes_for(model: int, split: str, residual: bool, classification: bool) -> tuple[int, ...]:
    """Uneven widths; the output layer may have fewer outputs than there are model ranks: 1 (regression) or 3."""
    outputs = 3 if classification else 1
    if residual:
        wide = max(6, model)
        return (wide, wide, wide, wide, wide + 3, wide + 3, outputs)
    hidden = (13, 7, 11) if model <= 7 or split == "alternating" else (13, 9, 11)
    return (5, *hidden, outputs)


def layouts(shape: tuple[int, int]) -> Iterator[Case]:
    """All splits, distributions, overlap and residual settings on a grid; other settings are drawn, equal on all ranks.

    Half of the cases share replicas. With more than four ranks, a grid has half of the combinations, which include
    every combination of three of the four settings, and the next grid has the other half.
    """
    draw = Random(f"{shape}")
    turn = grid_shapes(shape[0] * shape[1]).index(shape)
    for split, distribution, overlap, residual in product(SPLITS, DISTRIBUTIONS, (True, False), (False, True)):
        parity = SPLITS.index(split) + DISTRIBUTIONS.index(distribution) + overlap + residual + turn
        if shape[0] * shape[1] > 4 and parity % 2:
            continue
        classification = draw.random() < 0.5
        samples, batch_size = draw.choice(AMOUNTS)
        yield Case(
            sizes_for(shape[1], split, residual, classification),
            classification=classification,
            # A residual layer with the identity doubles its input, and the training diverges.
            activation=draw.choice(("tanh", "selu", "relu", "sigmoid", "tanh" if residual else "identity")),
            residual=residual,
            optimizer=draw.choice(list(OPTIMIZERS)),
            schedule=draw.choice(list(SCHEDULES)),
            clip_norm=draw.choice((None, 0.3, 1e3)),
            samples=samples,
            batch_size=batch_size,
            model_split=split,
            overlap=overlap,
            distribution=distribution,
            shared_replicas=draw.choice(("auto", False)),
        )


def trainings(shape: tuple[int, int]) -> Iterator[Case]:
    """All optimizers on a grid, with both tasks and both residual settings.

    With more than 3 ranks, only one of these four combinations runs, which depends on optimizer and grid. With more
    than four ranks, each optimizer runs on every second grid.
    """
    kinds = list(product((True, False), (True, False)))
    turn, ranks = shape[0], shape[0] * shape[1]
    grid_index = grid_shapes(ranks).index(shape)
    for number, optimizer in enumerate(OPTIMIZERS):
        if ranks > 4 and (number + grid_index) % 2:
            continue
        chosen = kinds if ranks <= 3 else [kinds[(number + turn) % len(kinds)]]
        for index, (classification, residual) in enumerate(chosen):
            split = SPLITS[(number // 2 + turn + index) % 2]
            sizes = sizes_for(shape[1], split, residual, classification)
            yield Case(
                sizes,
                classification,
                residual=residual,
                optimizer=optimizer,
                model_split=split,
                shared_replicas="auto" if (number + index) % 2 else False,
            )
