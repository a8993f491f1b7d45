"""Formulas of the papers: communication of a training step with batch, model, integrated and pipeline parallelism.

Laugier et al. 2018, sections 5 to 7, after Gholami et al. 2018, "Integrated model, batch and domain parallelism in
training neural networks"; Chen et al. 2018, Figure 3. Laugier et al. count per layer, each collective with ceil(lg P)
messages a direction, without biases and without the additions of a reduction; `hybridnn.cost.collectives` counts each
algorithm exactly.

Erratum: the 2018 paper prints P/(P-1) for the fraction of an array that P ranks exchange. It is (P-1)/P: a rank that
holds one of P parts lacks only the others. The printed factor is (P/(P-1))^2 times too large, 4 times at 2 ranks and
1.03 times at 64, and divides by zero at one rank, which sends nothing. ``formula="exact"`` is the right factor,
``formula="paper"`` the printed one, for reproduction only.

Parameters of the step functions: `widths` d_0 … d_L are the input width and the outputs of layers 1 … L; layer l has
d_l d_(l-1) weights. `batch` B is the samples of a minibatch, `itemsize` the bytes of an element. They raise a
SettingError for a number out of range, and with ``formula="paper"`` for an axis of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Literal

from hybridnn.cost.collectives import CommunicationCounts
from hybridnn.errors import GridError, SettingError
from hybridnn.parallel.grid import fitting_grids
from hybridnn.pipeline.partition import uniform_partition
from hybridnn.utils.checks import require_choice, require_whole

Formula = Literal["exact", "paper"]  # the factor (P-1)/P, or the printed P/(P-1)


def batch_step(
    widths: Sequence[int], ranks: int, *, itemsize: int = 4, formula: Formula = "exact"
) -> CommunicationCounts:
    """Batch parallelism: the weight gradients of every layer are all-reduced, whatever the minibatch.

    2 sum_l (alpha ceil(lg P) + beta (P-1)/P d_l d_(l-1)), Laugier et al. 2018, section 5.
    """
    _require_widths(widths)
    return _weight_reductions(widths, ranks, itemsize, formula)


def model_step(
    widths: Sequence[int], batch: int, ranks: int, *, itemsize: int = 4, formula: Formula = "exact"
) -> CommunicationCounts:
    """Model parallelism, with every layer split by its outputs.

    3 sum_l (alpha ceil(lg P) + beta B (P-1)/P d_l), Laugier et al. 2018, section 6: each layer's outputs are
    all-gathered, and a gradient of their size is all-reduced. `integrated_step` omits the all-reduce at the outputs of
    the last layer, whose gradient every rank has, as Gholami et al. do.
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    outputs = (batch * width * itemsize for width in widths[1:])
    return sum((_one_way(nbytes, ranks, formula) * 3 for nbytes in outputs), CommunicationCounts())


def integrated_step(
    widths: Sequence[int],
    batch: int,
    batch_ranks: int,
    model_ranks: int,
    *,
    itemsize: int = 4,
    formula: Formula = "exact",
) -> CommunicationCounts:
    """Integrated parallelism on a process grid, on the critical path of one rank.

    Over the P_m ranks of the model axis, for their B/P_b samples, the outputs d_l of every layer are all-gathered and
    the gradients at the inputs d_(l-1) of every layer but the first are all-reduced; over the P_b ranks of the batch
    axis the gradients of a rank's d_l d_(l-1)/P_m weights are all-reduced. Gholami et al. 2018; Laugier et al. 2018,
    Algorithm 3. P_m is P_r in both papers, and P_b is P_c: "P_r = 1" is pure batch parallelism (Laugier, 9.0.1).
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    require_whole("batch_ranks", batch_ranks, 1)
    require_whole("model_ranks", model_ranks, 1)
    outputs = [batch / batch_ranks * width * itemsize for width in widths[1:]]
    gathered = [_one_way(nbytes, model_ranks, formula) for nbytes in outputs]
    reduced = [_one_way(nbytes, model_ranks, formula) * 2 for nbytes in outputs[:-1]]
    weights = _weight_reductions(widths, batch_ranks, itemsize / model_ranks, formula)
    return sum([*gathered, *reduced], weights)


def best_grid(
    widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float, *, itemsize: int = 4
) -> tuple[int, int]:
    """The (batch, model) ranks whose `integrated_step` is fastest; of equally fast grids, with the longer batch axis.

    The batch axis grows with the minibatch (Gholami et al. 2018): activations are sent along the model axis, weight
    gradients along the batch axis. For L layers of one width d and alpha = 0 the cost is, up to a factor and a
    constant, 2 L d P_b + (3 L - 2) B P_m, so that a batch axis of b ranks overtakes one of a < b ranks at
    B = 2 L d a b / ((3 L - 2) P), and pure batch parallelism overtakes pure model parallelism at
    B = 2 L d / (3 L - 2), whatever P.

    Parameters
    ----------
    alpha, beta : float
        Seconds per message and per byte.

    Raises
    ------
    GridError
        If every grid would leave a rank without a sample, or without an output of any layer.
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    require_whole("ranks", ranks, 1)
    widest = max(widths[1:])
    grids = [grid for grid in fitting_grids(ranks) if grid[0] <= batch and grid[1] <= widest]
    if not grids:
        raise GridError(
            f"{ranks} ranks: no grid has at most {batch} batch ranks (samples of the minibatch) "
            f"and at most {widest} model ranks (outputs of the widest layer)"
        )
    return min(grids, key=lambda grid: integrated_step(widths, batch, *grid, itemsize=itemsize).seconds(alpha, beta))


def scatter_direct(nbytes: int, batch_ranks: int, model_ranks: int) -> CommunicationCounts:
    """The root sends every process its data: alpha + n_b n_m data beta (Laugier et al. 2018, section 7).

    `nbytes` is the paper's *data*. Section 4.1 calls it the data of a minibatch; the formula is right if it is the data
    of one process.
    """
    return CommunicationCounts(1, batch_ranks * model_ranks * nbytes)


def scatter_broadcast(
    nbytes: int, batch_ranks: int, model_ranks: int, *, formula: Formula = "exact"
) -> CommunicationCounts:
    """A scatter along one axis, then a broadcast along the other: 2 alpha + (n_b + n_m) data beta.

    Laugier et al. 2018, section 7, print max(n_b, n_m), ``formula="paper"``. But the broadcast sends what the scatter
    has brought, so that one follows the other and their times add up.
    """
    return CommunicationCounts(2, _second_way(batch_ranks, model_ranks, formula) * nbytes)


def scatter_threshold(
    batch_ranks: int, model_ranks: int, alpha: float, beta: float, *, formula: Formula = "exact"
) -> float:
    """Bytes below which `scatter_direct` is faster than `scatter_broadcast`; infinite if it always is.

    alpha / (beta (n_b n_m - n_b - n_m)): sending directly saves a message and sends more bytes. Laugier et al. 2018,
    section 7, print the inequality the other way round, and with max(n_b, n_m) in place of the sum. Their threshold
    follows from their constants, 1 microsecond and 5.6 TB/s: 5.6 MB/(n_b n_m - max(n_b, n_m)). But 5.6 TB/s is a rate
    of a whole machine; at the 8 GB/s that NERSC states for MPI on Cori it is 8 kB/(…).
    """
    extra = beta * (batch_ranks * model_ranks - _second_way(batch_ranks, model_ranks, formula))
    return alpha / extra if extra > 0 else inf


def data_parallel_bytes(widths: Sequence[int], ranks: int, *, itemsize: int = 4) -> int:
    """Bytes that all ranks send in a step of data parallelism: 2 (P-1) W, Chen et al. 2018, section 2.2 and Figure 3.

    Every rank but the parameter server sends its gradients and receives the weights; a ring or Rabenseifner's
    all-reduce sends as many bytes in all.
    """
    _require_widths(widths)
    require_whole("ranks", ranks, 1)
    return 2 * (ranks - 1) * itemsize * sum(inputs * outputs for inputs, outputs in pairwise(widths))


def pipeline_bytes(widths: Sequence[int], batch: int, ranks: int, *, itemsize: int = 4) -> int:
    """Bytes that all ranks send in a step of a layer pipeline: 2 B d at every boundary, Chen et al. 2018, section 2.2.

    Outputs of the last layer of every stage but the last, and gradients of the same size. The stages have equal numbers
    of layers. With one width d, `data_parallel_bytes` over these bytes is W / (B d).
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    ends = accumulate(uniform_partition(len(widths) - 1, ranks))
    return 2 * batch * itemsize * sum(widths[end] for end in list(ends)[:-1])


def _require_widths(widths: Sequence[int]) -> None:
    if len(widths) < 2:
        raise SettingError("widths", list(widths), "the input width and the outputs of at least one layer")
    for width in widths:
        require_whole("widths", width, 1)


def _second_way(batch_ranks: int, model_ranks: int, formula: Formula) -> int:
    """The parts that follow one another in `scatter_broadcast`."""
    require_choice("formula", formula, ("exact", "paper"))
    return max(batch_ranks, model_ranks) if formula == "paper" else batch_ranks + model_ranks


def _weight_reductions(widths: Sequence[int], ranks: int, itemsize: float, formula: Formula) -> CommunicationCounts:
    """All-reduces of the weight gradients of all layers."""
    weights = (inputs * outputs * itemsize for inputs, outputs in pairwise(widths))
    return sum((_one_way(nbytes, ranks, formula) * 2 for nbytes in weights), CommunicationCounts())


def _one_way(nbytes: float, ranks: int, formula: Formula) -> CommunicationCounts:
    """An all-gather of `nbytes`, or a reduce-scatter; an all-reduce is one after the other."""
    require_choice("formula", formula, ("exact", "paper"))
    require_whole("ranks", ranks, 1)
    if formula == "exact":
        fraction = (ranks - 1) / ranks
    elif ranks > 1:
        fraction = ranks / (ranks - 1)
    else:
        raise SettingError("formula", formula, "exact where an axis has one rank: the printed P/(P-1) divides by zero")
    return CommunicationCounts((ranks - 1).bit_length(), nbytes * fraction)
