"""The pipeline methods: each an order of computations and a rule for the weights that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hybridnn.pipeline.schedules import orders
from hybridnn.pipeline.schedules.orders import Extent, Order
from hybridnn.pipeline.schedules.weight_policies import CURRENT, EXACT, PREDICTED, STASHED, VERTICAL_SYNC, WeightPolicy

__all__ = ["METHODS", "Activations", "Method", "one_part", "whole_minibatch"]

Activations = Callable[[Extent, int], int]
"""From (extent, stage) to the most microbatches whose activations the stage holds at a time."""


@dataclass(frozen=True)
class Method:
    """A pipeline method.

    Attributes
    ----------
    name : str
    summary : str
        One line for people.
    order : callable
        From (extent, stage) to the stage's computations.
    policy : WeightPolicy
        Which weights each pass reads.
    activations : callable
        From (extent, stage) to the most microbatches whose activations the stage holds at a time.
    exact : bool
        Every minibatch is complete before the next one begins.
    cuts_minibatches : bool
        A minibatch may be cut into microbatches.
    chunked : bool
        A rank owns several chunks of layers.
    predicts : bool
        Reads predicted weights, which needs an optimizer with momentum.
    placed_weight_gradients : bool
        The order itself says when weight gradients are computed.
    placed_messages : bool
        The order itself says where loads and messages stand.
    synchronized : WeightPolicy or None
        The policy with vertical synchronization, where the method has that option.
    """

    name: str
    summary: str
    order: Order
    policy: WeightPolicy
    activations: Activations
    exact: bool = False
    cuts_minibatches: bool = False
    chunked: bool = False
    predicts: bool = False
    placed_weight_gradients: bool = False
    placed_messages: bool = False
    synchronized: WeightPolicy | None = None


def one_part(extent: Extent, stage: int) -> int:
    """One microbatch at a time."""
    return 1


def whole_minibatch(extent: Extent, stage: int) -> int:
    """All microbatches of a minibatch, in all chunks."""
    return extent.microbatches * extent.chunks


def _microbatches_on_their_way(extent: Extent, stage: int) -> int:
    return min(extent.stages - stage, extent.microbatches)


def _minibatches_on_their_way(extent: Extent, stage: int) -> int:
    """Kang 2019, Table 1: K - k + 1 minibatches at device k, which counts from 1."""
    return min(extent.stages - stage, extent.minibatches)


def _as_first_stage(extent: Extent, stage: int) -> int:
    return min(extent.stages, extent.microbatches)


def _interleaved(extent: Extent, stage: int) -> int:
    return min(orders.interleaved_warm_up(extent, stage) + 1, extent.microbatches * extent.chunks)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("sequential", "one minibatch at a time", orders.gpipe, EXACT, one_part, exact=True),
            Method(
                "gpipe",
                "all forward passes of a minibatch's microbatches, then all backward passes",
                orders.gpipe,
                EXACT,
                whole_minibatch,
                exact=True,
                cuts_minibatches=True,
            ),
            Method(
                "1f1b",
                "one forward and one backward pass in turn, empty after every minibatch",
                orders.one_forward_one_backward,
                EXACT,
                _microbatches_on_their_way,
                exact=True,
                cuts_minibatches=True,
            ),
            Method(
                "interleaved",
                "1f1b over several chunks of layers per rank",
                orders.interleaved,
                EXACT,
                _interleaved,
                exact=True,
                cuts_minibatches=True,
                chunked=True,
            ),
            Method(
                "zb-h1",
                "1f1b with the weight gradients moved to where the pipeline would wait",
                orders.zero_bubble_h1,
                EXACT,
                _as_first_stage,
                exact=True,
                cuts_minibatches=True,
                placed_weight_gradients=True,
            ),
            Method(
                "ddg",
                "delayed gradients: one forward pass, then the backward passes of all stages at once",
                orders.delayed_gradients,
                STASHED,
                _minibatches_on_their_way,
                placed_messages=True,
            ),
            Method(
                "fr",
                "features replay: as ddg, but keeps inputs only and recomputes with the current weights",
                orders.features_replay,
                CURRENT,
                one_part,
                placed_messages=True,
            ),
            Method(
                "pipedream",
                "1f1b over minibatches that is never empty, with stashed weights",
                orders.pipedream,
                STASHED,
                _minibatches_on_their_way,
                synchronized=VERTICAL_SYNC,
            ),
            Method(
                "vanilla",
                "as pipedream without stashed weights",
                orders.pipedream,
                CURRENT,
                _minibatches_on_their_way,
            ),
            Method(
                "spectrain",
                "as vanilla with predicted weights",
                orders.pipedream,
                PREDICTED,
                _minibatches_on_their_way,
                predicts=True,
            ),
        )
    }
)
"""All methods by name."""
