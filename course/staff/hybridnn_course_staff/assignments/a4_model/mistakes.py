"""Known wrong solutions of A4: the division into shards, and the norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard
from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a4_model.solution import is_by_inputs, split_solution

Layers = Sequence[DenseLayer]
Split = Callable[..., list[LayerShard]]


# -- split ------------------------------------------------------------------------------------------------------------


def _bias_on_every_rank(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        return [replace(item, bias_rows=item.rows) for item in shards]

    return split_layers


def _rows_and_columns(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        return [replace(item, rows=item.columns, columns=item.rows) for item in shards]

    return split_layers


def _gathers_inside_a_pair(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        return [replace(item, gathers=not item.by_inputs) for item in shards]

    return split_layers


def _gather_forgotten(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        return [replace(item, gathers=item.gathers and split == "columns") for item in shards]

    return split_layers


def _gathers_after_a_sum(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        return [replace(item, gathers=item.gathers or item.by_inputs) for item in shards]

    return split_layers


def _one_split_only(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        return split_solution(variant)(layers, "alternating", ranks, rank)

    return split_layers


def _remainder_lost(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        def block(items: int) -> slice:
            return slice(rank * (items // ranks), (rank + 1) * (items // ranks))

        def shard(item: LayerShard) -> LayerShard:
            layer = item.layer
            if item.by_inputs:
                is_shared = variant["bias_owner"] == "in blocks"
                return replace(
                    item, columns=block(layer.inputs), bias_rows=block(layer.outputs) if is_shared else item.bias_rows
                )
            return replace(item, rows=block(layer.outputs), bias_rows=block(layer.outputs))

        return list(map(shard, split_solution(variant)(layers, split, ranks, rank)))

    return split_layers


def _number_of_the_network(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        # A layer in front, or none, makes the position even where the layer's number is.
        skipped = layers[0].index % 2 if layers else 0
        return split_solution(variant)([*layers[:skipped], *layers], split, ranks, rank)[skipped:]

    return split_layers


def _pair_not_looked_for(variant: Variant) -> Split:
    def split_layers(layers: Layers, split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = split_solution(variant)(layers, split, ranks, rank)
        last = len(layers) - 1
        if layers and split == "alternating" and not is_by_inputs(variant, split, last):
            shards[last] = replace(shards[last], gathers=False)
        return shards

    return split_layers


SPLIT = (
    Mistake(
        "bias-on-every-rank",
        _bias_on_every_rank,
        "Every rank owns the whole bias of a layer split by inputs. The ranks' products are summed: how often is the"
        " bias in the sum?",
    ),
    Mistake(
        "rows-and-columns",
        _rows_and_columns,
        "Rows and columns are exchanged. A weight matrix has the shape (outputs, inputs): which axis do the outputs "
        "divide?",
    ),
    Mistake(
        "gathers-inside-a-pair",
        _gathers_inside_a_pair,
        "The outputs are gathered although a layer split by inputs follows. Which rows of its input does each rank "
        "of that layer read?",
    ),
    Mistake(
        "gather-forgotten",
        _gather_forgotten,
        "With the split `alternating` no layer gathers its outputs. Who reads the outputs of a last layer that is "
        "split by outputs?",
        variants={"first_split": ["inputs"]},
    ),
    Mistake(
        "last-layer-not-gathered",
        _pair_not_looked_for,
        "A layer split by outputs that is the last one does not gather. Which layer would read the blocks?",
        variants={"first_split": ["outputs"]},
    ),
    Mistake(
        "gathers-after-a-sum",
        _gathers_after_a_sum,
        "A layer split by inputs gathers its outputs. What does each rank have after the sum of the products?",
    ),
    Mistake(
        "one-split-only",
        _one_split_only,
        "The result does not depend on `split`. Which layers are split by inputs with the split `columns`?",
    ),
    Mistake(
        "remainder-lost",
        _remainder_lost,
        "All blocks have the same size, so the last rows or columns belong to no rank. How many rows are left over "
        "when 10 are divided by 4?",
    ),
    Mistake(
        "number-of-the-network",
        _number_of_the_network,
        "Layers alternate by their number in the network. These layers may be those of one pipeline stage: at which "
        "layer does the alternation begin?",
    ),
)


# -- norm -------------------------------------------------------------------------------------------------------------

Norm = Callable[..., float]


def _squares(gradients: Any) -> list[float]:
    return [float(np.sum(np.square(gradient))) for gradient in gradients]


def _summed(group: Any, value: float) -> float:
    array = np.array([value])
    group.allreduce(array)
    return float(array[0])


def _counted_p_times(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        return float(np.sqrt(_summed(group, sum(_squares(gradients)))))

    return global_norm


def _norm_of_norms(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        counted = [
            value for value, same in zip(_squares(gradients), is_replicated, strict=True) if not same or not group.rank
        ]
        return _summed(group, float(np.sqrt(sum(counted))))

    return global_norm


def _root_forgotten(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        pairs = zip(_squares(gradients), is_replicated, strict=True)
        return _summed(group, sum(value / group.size if same else value for value, same in pairs))

    return global_norm


def _local_norm(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        return float(np.sqrt(sum(_squares(gradients))))

    return global_norm


def _replicated_left_out(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        pairs = zip(_squares(gradients), is_replicated, strict=True)
        return float(np.sqrt(_summed(group, sum(value for value, same in pairs if not same))))

    return global_norm


def _all_divided(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        return float(np.sqrt(_summed(group, sum(_squares(gradients))) / group.size))

    return global_norm


def _many_allreduces(_: Variant) -> Norm:
    def global_norm(group: Any, gradients: Any, is_replicated: Any) -> float:
        pairs = zip(_squares(gradients), is_replicated, strict=True)
        return float(np.sqrt(sum(_summed(group, value / group.size if same else value) for value, same in pairs)))

    return global_norm


NORM = (
    Mistake(
        "norm-counted-p-times",
        _counted_p_times,
        "The squares of a replicated array are summed over the ranks, each of which has all of it. How often does the "
        "model have these elements?",
    ),
    Mistake(
        "norm-of-norms",
        _norm_of_norms,
        "Each rank took a root, and the roots were summed. Is the root of a sum the sum of the roots?",
    ),
    Mistake("root-forgotten", _root_forgotten, "This is the sum of the squares. What is the norm?"),
    Mistake("local-norm", _local_norm, "Each rank returns the norm of its own arrays. What do the others have?"),
    Mistake(
        "replicated-left-out",
        _replicated_left_out,
        "Replicated arrays do not count at all. How often does each element of the model count?",
    ),
    Mistake(
        "everything-divided",
        _all_divided,
        "The sum over the ranks was divided by their number: right for replicated arrays. Which elements are on one "
        "rank only?",
    ),
    Mistake(
        "many-allreduces",
        _many_allreduces,
        "The value is right, but there is one all-reduce for each array. What can be added up before anything is sent?",
    ),
)
