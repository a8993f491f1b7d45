"""What the papers say a training step costs in communication: batch, model and integrated parallelism.

Laugier et al. 2018, sections 5 to 7, after Gholami et al. 2018, "Integrated model, batch and domain parallelism in
training neural networks". The papers count per layer, each collective at ceil(lg P) messages a direction, without
biases and without the additions inside a reduction; `hybridnn.cost.collectives` counts algorithm by algorithm.

An erratum of the 2018 paper: it prints that P ranks exchange P/(P-1) of an array. It is (P-1)/P: a rank that holds one
of P parts lacks only the others. The printed factor is (P/(P-1))^2 times too large, 4 times at 2 ranks and 1.03 times
at 64, and divides by zero at one rank, which sends nothing. ``formula="exact"`` has the right factor;
``formula="paper"`` has the printed one, for reproduction and nothing else.

Widths d_0 … d_L are those of the input and of the outputs of layers 1 … L; the weights of layer l are d_l d_(l-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Literal

from hybridnn.cost.collectives import CommunicationCounts
from hybridnn.errors import GridError, SettingError
from hybridnn.parallel.placement import fitting_grids
from hybridnn.utils.checks import require_choice, require_whole

Formula = Literal["exact", "paper"]
"""(P-1)/P, which is right, or P/(P-1), which is printed."""


def batch_step(
    widths: Sequence[int], ranks: int, *, itemsize: int = 4, formula: Formula = "exact"
) -> CommunicationCounts:
    """Communication of a step of batch parallelism: the gradient of every layer's weights is all-reduced.

    2 sum_l (alpha ceil(lg P) + beta (P-1)/P d_l d_(l-1)), Laugier et al. 2018, section 5. It does not depend on the
    minibatch.

    Parameters
    ----------
    widths : sequence of int
        Input width and the outputs of every layer.
    ranks : int
        P, 1 or more.
    itemsize : int
        Bytes of a number.
    formula : {"exact", "paper"}

    Raises
    ------
    SettingError
        For a number that cannot be, and for ``"paper"`` with one rank, where the printed formula divides by zero.
    """
    _require_widths(widths)
    return _over_batch(widths, ranks, itemsize, formula)


def model_step(
    widths: Sequence[int], batch: int, ranks: int, *, itemsize: int = 4, formula: Formula = "exact"
) -> CommunicationCounts:
    """Communication of a step of model parallelism, every layer split by its outputs.

    3 sum_l (alpha ceil(lg P) + beta B (P-1)/P d_l), Laugier et al. 2018, section 6: each layer's outputs are
    all-gathered, and a gradient of their size is all-reduced. (At the outputs of the last layer every rank knows the
    gradient anyway: `integrated_step` leaves that all-reduce out, as Gholami et al. do.)

    Parameters
    ----------
    widths : sequence of int
        Input width and the outputs of every layer.
    batch : int
        B, the samples of a minibatch.
    ranks : int
        P, 1 or more.
    itemsize : int
        Bytes of a number.
    formula : {"exact", "paper"}

    Raises
    ------
    SettingError
        As for `batch_step`.
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
    """Communication of a step on a process grid, the critical path of one rank.

    Over the P_m ranks of the model axis, for the B/P_b samples they have in common, the outputs d_l of every layer are
    all-gathered and the gradients at the inputs d_(l-1) of every layer but the first are all-reduced; over the P_b
    ranks of the batch axis the gradients of the d_l d_(l-1)/P_m weights that a rank owns are all-reduced. Gholami et
    al. 2018 (there P_r is the model axis and P_c the batch axis); Laugier et al. 2018, Algorithm 3.

    Parameters
    ----------
    widths : sequence of int
        Input width and the outputs of every layer.
    batch : int
        B, the samples of a minibatch.
    batch_ranks, model_ranks : int
        P_b and P_m, each 1 or more.
    itemsize : int
        Bytes of a number.
    formula : {"exact", "paper"}

    Raises
    ------
    SettingError
        As for `batch_step`, here where either axis has one rank.
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    require_whole("batch_ranks", batch_ranks, 1)
    require_whole("model_ranks", model_ranks, 1)
    outputs = [batch / batch_ranks * width * itemsize for width in widths[1:]]
    gathered = [_one_way(nbytes, model_ranks, formula) for nbytes in outputs]
    reduced = [_one_way(nbytes, model_ranks, formula) * 2 for nbytes in outputs[:-1]]
    weights = _over_batch(widths, batch_ranks, itemsize / model_ranks, formula)
    return sum([*gathered, *reduced], weights)


def best_grid(
    widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float, *, itemsize: int = 4
) -> tuple[int, int]:
    """The process grid whose `integrated_step` is fastest.

    Its batch axis grows with the minibatch (Gholami et al. 2018): activations travel along the model axis, gradients of
    weights along the batch axis. For L layers of one width d and alpha = 0 the cost is, up to a factor and a constant,
    2 L d P_b + (3 L - 2) B P_m, so a batch axis of b ranks overtakes one of a < b ranks at
    B = 2 L d a b / ((3 L - 2) P). Pure batch parallelism overtakes pure model parallelism at B = 2 L d / (3 L - 2),
    whatever P.

    Parameters
    ----------
    widths : sequence of int
        Input width and the outputs of every layer.
    batch : int
        Samples of a minibatch.
    ranks : int
        Ranks to use, all of them.
    alpha, beta : float
        Seconds per message and per byte.
    itemsize : int
        Bytes of a number.

    Returns
    -------
    tuple of int
        (batch_ranks, model_ranks). Of equally fast grids that with the longer batch axis.

    Raises
    ------
    GridError
        If every grid would leave a rank without a sample or without an output of some layer.
    SettingError
        For a number that cannot be.
    """
    _require_widths(widths)
    require_whole("batch", batch, 1)
    require_whole("ranks", ranks, 1)
    narrowest = min(widths[1:])
    grids = [grid for grid in fitting_grids(ranks) if grid[0] <= batch and grid[1] <= narrowest]
    if not grids:
        raise GridError(
            f"{ranks} ranks: no grid has at most {batch} batch ranks (samples of the minibatch) "
            f"and at most {narrowest} model ranks (outputs of the narrowest layer)"
        )
    return min(grids, key=lambda grid: integrated_step(widths, batch, *grid, itemsize=itemsize).seconds(alpha, beta))


def scatter_direct(nbytes: int, batch_ranks: int, model_ranks: int) -> CommunicationCounts:
    """The root sends every process its data: alpha + n_b n_m data beta, as printed (Laugier et al. 2018, section 7).

    Parameters
    ----------
    nbytes : int
        The paper's *data*. It calls that the data of a minibatch, but n_b n_m data are all messages of the root only if
        it is what one process needs.
    batch_ranks, model_ranks : int
        n_b and n_m.
    """
    return CommunicationCounts(1, batch_ranks * model_ranks * nbytes)


def scatter_broadcast(nbytes: int, batch_ranks: int, model_ranks: int) -> CommunicationCounts:
    """A scatter along one axis, then a broadcast along the other: 2 alpha + max(n_b, n_m) data beta, as printed.

    Laugier et al. 2018, section 7. Parameters as for `scatter_direct`.
    """
    return CommunicationCounts(2, max(batch_ranks, model_ranks) * nbytes)


def scatter_threshold(batch_ranks: int, model_ranks: int, alpha: float, beta: float) -> float:
    """Bytes at which the two ways to distribute a minibatch are equally fast; direct sending is faster *below* it.

    alpha / (beta (n_b n_m - max(n_b, n_m))), from the two formulas of Laugier et al. 2018, section 7: sending directly
    saves a message and sends more bytes, which pays while there are few. The paper has the inequality the other way
    round. Its number does follow from its constants, 1 microsecond and 5.6 TB/s: 5.6 MB/(n_b n_m - max(n_b, n_m)). But
    5.6 TB/s is a rate for a whole machine; at the 8 GB/s that NERSC states for MPI on Cori it is 8 kB/(…).

    Parameters
    ----------
    batch_ranks, model_ranks : int
        n_b and n_m.
    alpha, beta : float
        Seconds per message and per byte.

    Returns
    -------
    float
        Infinite where an axis has one rank, or bytes cost nothing: sending directly is always faster then.
    """
    extra = beta * (batch_ranks * model_ranks - max(batch_ranks, model_ranks))
    return alpha / extra if extra else inf


def _require_widths(widths: Sequence[int]) -> None:
    if len(widths) < 2:
        raise SettingError("widths", list(widths), "the input width and the outputs of at least one layer")
    for width in widths:
        require_whole("widths", width, 1)


def _over_batch(widths: Sequence[int], ranks: int, itemsize: float, formula: Formula) -> CommunicationCounts:
    """The all-reduces of the gradients of all layers' weights."""
    weights = (inputs * outputs * itemsize for inputs, outputs in pairwise(widths))
    return sum((_one_way(nbytes, ranks, formula) * 2 for nbytes in weights), CommunicationCounts())


def _one_way(nbytes: float, ranks: int, formula: Formula) -> CommunicationCounts:
    """An all-gather of `nbytes`, or a reduce-scatter; an all-reduce is one after the other."""
    require_choice("formula", formula, ("exact", "paper"))
    require_whole("ranks", ranks, 1)
    if formula == "exact":
        share = (ranks - 1) / ranks
    elif ranks > 1:
        share = ranks / (ranks - 1)
    else:
        raise SettingError("formula", formula, "exact where an axis has one rank: the printed P/(P-1) divides by zero")
    return CommunicationCounts((ranks - 1).bit_length(), nbytes * share)
