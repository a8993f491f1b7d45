"""Calibrating what computing costs: samples on all ranks of a node at once and on one alone, and fits to them.

How much longer computing takes than its median, for the last of ranks that wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.cost.calibration.compute_samples import (
    ConcurrentRanks,
    ElementSample,
    PassSample,
    measure_elements,
    measure_passes,
)
from hybridnn.cost.calibration.compute_steps import StepTimer, fit_element, fit_steps, measure_steps
from hybridnn.cost.calibration.fit import LinearFit, fit_linear
from hybridnn.cost.calibration.samples import meet_asleep
from hybridnn.cost.machine.compute import ActivationCost, Compute, ElementCost, PassCost
from hybridnn.nn.mlp import ACTIVATIONS
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.partition.layer_profile import LayerSeconds

QUARTILES = 0.25, 0.75

TRIMMED = 0.1
"""Share of the networks left out at both ends."""


def fit_noise(networks: Sequence[Sequence[float]]) -> float:
    """Mean delay of a computation relative to its median, with delays taken as exponential.

    The distance between the quartiles of a network's rounds is divided by what it is expected to be for exponential
    delays of mean 1; the trimmed mean over the networks counts. So neither a few slow rounds nor a few networks that
    met another job decide it.

    Parameters
    ----------
    networks : sequence of sequence of float
        Seconds of a computation, two times or more, for each of several.

    Notes
    -----
    Of n exponential delays of mean 1 the i-th smallest is expected to be 1/n + 1/(n-1) + ... + 1/(n-i+1) (Renyi 1953).
    Quartiles are interpolated linearly between delays, and their expectations between these.
    """
    found = sorted(_spread(rounds) / (_expected_spread(len(rounds)) * float(np.median(rounds))) for rounds in networks)
    cut = int(TRIMMED * len(found))
    return float(np.mean(found[cut : len(found) - cut]))


def _spread(seconds: Sequence[float]) -> float:
    low, high = np.quantile(seconds, QUARTILES)
    return float(high - low)


@lru_cache
def _expected_spread(count: int) -> float:
    return _spread(np.cumsum(1 / np.arange(count, 0, -1)).tolist())


PASSES = LayerSeconds._fields
CACHES = tuple(2.0**power for power in range(17, 26))
"""Sizes that are tried as that of the cache, in bytes: 128 KiB to 32 MiB."""

HELD_OUT = 4
"""One network in so many is held out of the fit."""

SHARES = {"passes": 0.5, "elements": 0.1, "steps": 0.4}
"""Parts of the time that is given."""

WEIGHTS = {"float32": 2, "float64": 1}
"""Most training is in float32, and so is most of the time."""


@dataclass(frozen=True)
class ComputeError:
    """How well a fit predicts what was held out of it.

    Attributes
    ----------
    dtype : str
    busy_ranks : int
    what : str
        Kind of pass.
    samples : int
        Held out.
    mean, largest : float
        Relative error; the mean is weighted by seconds, as errors of a step are.
    """

    dtype: str
    busy_ranks: int
    what: str
    samples: int
    mean: float
    largest: float


def calibrate_compute(
    grid: ProcessGrid, dtypes: Sequence[str], budget_seconds: float, seed: int, time_step: StepTimer
) -> tuple[tuple[Compute, ...], list[ComputeError]]:
    """Measure computing in every precision, with one rank busy and with all ranks of the node.

    Collective over the grid; the result of rank 0 counts.

    Parameters
    ----------
    grid : ProcessGrid
    dtypes : sequence of str
    budget_seconds : float
        For all of it, about.
    seed : int
    time_step : callable
        Times steps of training.

    Returns
    -------
    tuple of Compute
    list of ComputeError
    """
    node = grid.node_group
    alone = Group(None, "alone", grid.recorder)
    found, errors = [], []
    for dtype in dtypes:
        for ranks in (alone, node) if node.size > 1 else (alone,):
            meet_asleep(grid.world)
            if ranks is node or node.rank == 0:
                budget = budget_seconds * WEIGHTS[dtype] / sum(map(WEIGHTS.__getitem__, dtypes)) / min(node.size, 2)
                compute, wrong = _calibrate(dtype, ranks, budget, seed, time_step)
                found.append(compute)
                errors += wrong
    meet_asleep(grid.world)
    return tuple(found), errors


def _calibrate(
    dtype: str, ranks: Group, budget: float, seed: int, time_step: StepTimer
) -> tuple[Compute, list[ComputeError]]:
    generator, crowd = np.random.default_rng([seed, ranks.size]), ConcurrentRanks(ranks)
    networks = measure_passes(dtype, budget * SHARES["passes"], generator, crowd)
    elements = measure_elements(dtype, budget * SHARES["elements"], generator, crowd)
    steps = measure_steps(dtype, budget * SHARES["steps"], generator, crowd, time_step)
    itemsize = np.dtype(dtype).itemsize
    fitted = [layer for number, one in enumerate(networks) if number % HELD_OUT or number == 0 for layer in one.layers]
    held_out = [layer for one in networks[HELD_OUT::HELD_OUT] for layer in one.layers]
    cache = min(CACHES, key=lambda size: _misfit(fitted, size / itemsize))
    fits = {kind: _fit_pass(fitted, kind, cache / itemsize) for kind in PASSES}
    costs = {kind: _pass_cost(fit) for kind, fit in fits.items()}
    by_kind = _fit_elements(elements, cache / itemsize)
    of_steps = fit_steps(steps, cache / itemsize)
    compute = Compute(
        dtype="float64" if dtype == "float64" else "float32",
        busy_ranks=ranks.size,
        cache_bytes=cache,
        forward=costs["forward"],
        input_gradient=costs["input_gradient"],
        weight_gradient=costs["weight_gradient"],
        activations={
            name: ActivationCost(forward=by_kind[f"forward {name}"], gradient=by_kind[f"gradient {name}"])
            for name in ACTIVATIONS
            if name != "identity"
        },
        losses=of_steps.losses,
        load=of_steps.load,
        packing=by_kind["packing"],
        updates=of_steps.updates,
        instruction_seconds=of_steps.instruction_seconds,
        step_seconds=of_steps.step_seconds,
        noise=fit_noise([one.rounds for one in networks]),
    )
    errors = [_error(dtype, ranks.size, kind, fits[kind], held_out, cache / itemsize) for kind in PASSES if held_out]
    return compute, errors


# -- passes ----------------------------------------------------------------------------------------------------------


def _pass_features(samples: Sequence[PassSample], cache_numbers: float) -> NDArray[np.float64]:
    """What a pass has of everything that `PassCost` has a price for, in its order."""
    rows = []
    for one in samples:
        weights = one.outputs * one.inputs
        uncached = weights if weights >= cache_numbers else 0
        rows.append((1, one.samples * one.outputs, one.samples * one.inputs, weights, uncached, weights * one.samples))
    return np.array(rows, np.float64)


def _of_kind(samples: Sequence[PassSample], kind: str) -> tuple[list[PassSample], NDArray[np.float64]]:
    """The samples that have a pass of that kind, with its seconds."""
    having = [one for one in samples if kind != "input_gradient" or not one.first]
    return having, np.array([getattr(one.seconds, kind) for one in having])


def _fit_pass(samples: Sequence[PassSample], kind: str, cache_numbers: float) -> LinearFit:
    having, seconds = _of_kind(samples, kind)
    if not having:  # a budget so short that one network of one layer was timed
        having, seconds = _of_kind(samples, "weight_gradient")
    return fit_linear(_pass_features(having, cache_numbers), seconds)


def _misfit(samples: Sequence[PassSample], cache_numbers: float) -> float:
    return sum(_fit_pass(samples, kind, cache_numbers).mean_relative_error for kind in PASSES)


def _pass_cost(fit: LinearFit) -> PassCost:
    call, output, input_, weight, uncached, multiply_add = fit.coefficients
    return PassCost(
        call_seconds=call,
        output_seconds=output,
        input_seconds=input_,
        weight_seconds=weight,
        uncached_weight_seconds=uncached,
        multiply_add_seconds=multiply_add,
    )


def _error(
    dtype: str, busy: int, kind: str, fit: LinearFit, held_out: Sequence[PassSample], cache_numbers: float
) -> ComputeError:
    having, seconds = _of_kind(held_out, kind)
    if not having:
        return ComputeError(dtype, busy, kind, 0, 0.0, 0.0)
    wrong = np.abs(fit.seconds(_pass_features(having, cache_numbers)) - seconds)
    mean, largest = float(wrong.sum() / seconds.sum()), float((wrong / seconds).max())
    return ComputeError(dtype, busy, kind.replace("_", " "), len(having), mean, largest)


def _fit_elements(samples: Sequence[ElementSample], cache_numbers: float) -> dict[str, ElementCost]:
    """Costs of every kind of element-wise work."""
    of_kinds: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        of_kinds[sample.kind].append((sample.numbers, sample.seconds))
    return {kind: fit_element(pairs, cache_numbers) for kind, pairs in of_kinds.items()}
