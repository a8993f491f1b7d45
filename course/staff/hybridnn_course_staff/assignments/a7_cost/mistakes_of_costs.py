"""Known wrong solutions of A7: fits, and counts of collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridnn_course.assignment import Function, Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a7_cost.solution import (
    NODE,
    RADIX,
    SUMMARIES,
    Array,
    Counts,
    block,
    collective_solution,
    doublings,
    knomial_tree,
    merged,
    neighbour_exchange,
    non_negative,
    relative_rows,
    ring_counts,
)

# -- fit --------------------------------------------------------------------------------------------------------------


def _fit(solve: Callable[[Array, Array], Array], summary: Callable[[Array], Any] | None = None) -> Any:
    """A wrong fit: of features over seconds, or for another summary of repetitions."""

    def function(variant: Variant) -> Function:
        def fit_costs(features: Array, seconds: Array) -> Array:
            rows, measured = merged(features, seconds, summary or SUMMARIES[variant["repetitions"]])
            return solve(rows, measured)

        return fit_costs

    return function


def _relative(rows: Array, measured: Array) -> Array:
    return non_negative(relative_rows(rows, measured), np.ones(len(measured)))


def _unconstrained(rows: Array, measured: Array) -> Array:
    return np.asarray(np.linalg.lstsq(relative_rows(rows, measured), np.ones(len(measured)), rcond=None)[0], np.float64)


def _every_repetition(_: Variant) -> Function:
    def fit_costs(features: Array, seconds: Array) -> Array:
        return _relative(features, seconds)

    return fit_costs


def _two_samples(rows: Array, measured: Array) -> Array:
    """Through the smallest and the largest sample, as a line through the ends of a plot."""
    ends = [int(np.argmin(measured)), int(np.argmax(measured))]
    return _relative(rows[ends], measured[ends])


def _rates(rows: Array, measured: Array) -> Array:
    """The reciprocals: units per second."""
    found = _relative(rows, measured)
    return np.divide(1.0, found, out=np.zeros_like(found), where=found > 0)


def _without_messages(rows: Array, measured: Array) -> Array:
    return np.concatenate([[0.0], _relative(rows[:, 1:], measured)])


FIT = (
    Mistake(
        "absolute-error",
        _fit(non_negative),
        "The squares of seconds were summed: the longest measurements decide alone, and short messages do not count. "
        "How large may an error of a microsecond be, beside ten microseconds and beside a second?",
    ),
    Mistake(
        "negative-alpha",
        _fit(_unconstrained),
        "A coefficient is negative: a message would arrive before it is sent. What does the docstring require?",
    ),
    Mistake(
        "clipped-afterwards",
        _fit(lambda rows, measured: np.maximum(_unconstrained(rows, measured), 0)),
        "Negative coefficients of an unconstrained fit were set to 0, and the others were kept. Are those still the "
        "best once that feature is free?",
    ),
    Mistake(
        "mean-with-outliers",
        _fit(_relative, np.mean),
        "Repetitions were averaged, and one disturbed repetition moves the average far. Which number does your handout "
        "name?",
    ),
    Mistake(
        "every-repetition",
        _every_repetition,
        "All repetitions were fitted as measurements of their own, outliers included. What does your handout do with "
        "equal rows first?",
    ),
    Mistake(
        "bits",
        _fit(lambda rows, measured: _relative(rows, measured) * ([1.0] + [0.125] * (rows.shape[1] - 1))),
        "Every coefficient but the first is an eighth of the right one. In which unit is the feature: bits or bytes?",
    ),
    Mistake(
        "ends-only",
        _fit(_two_samples),
        "The line goes through the shortest and the longest measurement. What do the others change?",
    ),
    Mistake(
        "alpha-left-out",
        _fit(_without_messages),
        "The first feature has the coefficient 0. What does a message of no bytes cost?",
    ),
    Mistake(
        "rates",
        _fit(_rates),
        "These are units per second. Which unit has alpha, and which has beta?",
    ),
)


# -- ring -------------------------------------------------------------------------------------------------------------


def _ring(counts: Callable[[int, int], Counts]) -> Callable[[Variant], Function]:
    """A wrong solution with other counts."""

    def function(_: Variant) -> Function:
        def wrong(nbytes: int, ranks: int) -> Counts:
            return counts(nbytes, ranks)

        return wrong

    return function


def _printed(nbytes: int, ranks: int) -> Counts:
    factor = ranks / (ranks - 1) if ranks > 1 else 0.0
    return 2 * (ranks - 1), 2 * nbytes * factor, nbytes * factor


def _changed(messages: float = 1, sent: float = 1, reduced: float = 1) -> Callable[[int, int], Counts]:
    def counts(nbytes: int, ranks: int) -> Counts:
        right = ring_counts(nbytes, ranks)
        return right[0] * messages, right[1] * sent, right[2] * reduced

    return counts


def _one_rank(nbytes: int, ranks: int) -> Counts:
    largest = block(nbytes, ranks, 0)
    return max(2 * (ranks - 1), 2), max(2 * (ranks - 1), 2) * largest, max(ranks - 1, 1) * largest


RING = (
    Mistake(
        "p-over-p-minus-1",
        _ring(_printed),
        "The bytes have the factor p/(p-1), as Laugier et al. 2018 print it (see the errata in the library's "
        "documentation of the papers). With two ranks that is twice the vector. How much of the vector does a rank "
        "lack if it holds one of p blocks?",
    ),
    Mistake(
        "log-of-p-alphas",
        _ring(lambda nbytes, ranks: (2 * doublings(ranks), *ring_counts(nbytes, ranks)[1:])),
        "There are about 2 log p messages, as in a tree or in recursive doubling. To whom does a rank of a ring send, "
        "and how many rounds does a block need to reach all the others?",
    ),
    Mistake(
        "bits",
        _ring(_changed(sent=8, reduced=8)),
        "Every number of bytes is eight times too large. What is the unit of `nbytes`?",
    ),
    Mistake(
        "even-blocks",
        _ring(lambda n, p: (2 * (p - 1), 2 * n * (p - 1) / p, n * (p - 1) / p)),
        "The blocks were taken as equal. How long does a round take in which one message is longer than the others?",
    ),
    Mistake(
        "smallest-blocks",
        _ring(lambda n, p: (2 * (p - 1), 2 * (p - 1) * (n // p), (p - 1) * (n // p))),
        "The smallest block was counted. Which message ends a round?",
    ),
    Mistake(
        "whole-vector",
        _ring(lambda n, p: (2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)),
        "The whole vector travels in every round. What does a rank send in a round of a ring?",
    ),
    Mistake(
        "one-phase",
        _ring(lambda n, p: (ring_counts(n, p)[0] / 2, ring_counts(n, p)[1] / 2, ring_counts(n, p)[2])),
        "Messages and bytes are those of one phase. What has a rank after the reduce-scatter, and what does it lack?",
    ),
    Mistake(
        "one-round-more",
        _ring(lambda n, p: (2 * p * (p > 1), 2 * p * block(n, p, 0) * (p > 1), p * block(n, p, 0) * (p > 1))),
        "There are p rounds in each phase. Does a rank receive its own block?",
    ),
    Mistake(
        "one-rank-costs",
        _ring(_one_rank),
        "One rank alone has costs. To whom does it send?",
    ),
    Mistake(
        "reduced-twice",
        _ring(_changed(reduced=2)),
        "Additions were counted in both phases. What does a rank do with a block that it receives in the all-gather?",
    ),
)


# -- collective -------------------------------------------------------------------------------------------------------


def _of(counts: Callable[[int, int], Counts]) -> Callable[[Variant], Function]:
    return _ring(counts)


def _scaled(function: Callable[[float, float, float], Counts]) -> Callable[[Variant], Function]:
    """The right counts, changed."""

    def wrong(variant: Variant) -> Function:
        right = collective_solution(variant)

        def collective_counts(nbytes: int, ranks: int) -> Counts:
            return function(*right(nbytes, ranks))

        return collective_counts

    return wrong


def _one_rank_costs(variant: Variant) -> Function:
    right = collective_solution(variant)

    def collective_counts(nbytes: int, ranks: int) -> Counts:
        return right(nbytes, ranks) if ranks > 1 else (1, nbytes, 0)

    return collective_counts


def _halved(p: int) -> int:
    return p // 2 if p % 2 == 0 else p - 1


def _tree(messages: Callable[[int], int]) -> Callable[[Variant], Function]:
    return _of(lambda n, p: (messages(p), messages(p) * n, 0))


def _levels(ranks: int) -> int:
    """Levels of the tree."""
    levels, reached = 0, 1
    while reached < ranks:
        levels, reached = levels + 1, reached * RADIX
    return levels


def _nodes(nbytes: int, ranks: int, *, reduces: int = 1, broadcasts: int = 1, nodes: int | None = None) -> Counts:
    """Two levels with other phases, or another number of nodes."""
    inner = doublings(min(NODE, ranks))
    messages, sent, reduced = ring_counts(nbytes, -(-ranks // NODE) if nodes is None else nodes)
    phases = (reduces + broadcasts) * inner
    return messages + phases, sent + phases * nbytes, reduced + reduces * inner * nbytes


def _linear_inside(nbytes: int, ranks: int) -> Counts:
    inner = min(NODE, ranks) - 1
    messages, sent, reduced = ring_counts(nbytes, -(-ranks // NODE))
    return messages + 2 * inner, sent + 2 * inner * nbytes, reduced + inner * nbytes


def _only(choice: str) -> dict[str, Sequence[str]]:
    return {"collective": [choice]}


EXCHANGE, TREE, LEVELS = _only("neighbour exchange"), _only("4-nomial tree"), _only("two levels")

COLLECTIVE = (
    Mistake(
        "bits",
        _scaled(lambda messages, sent, reduced: (messages, 8 * sent, 8 * reduced)),
        "Every number of bytes is eight times too large. What is the unit of `nbytes`?",
    ),
    Mistake("one-rank-costs", _one_rank_costs, "One rank alone has costs. To whom does it send?"),
    Mistake(
        "even-blocks",
        _of(lambda n, p: (_halved(p), n * (p - 1) / p, 0)),
        "The blocks were taken as equal. How long does a round take in which one message is longer than the others?",
        EXCHANGE,
    ),
    Mistake(
        "two-blocks-in-every-round",
        _of(
            lambda n, p: neighbour_exchange(n, p) if p % 2 else (p // 2, p // 2 * (block(n, p, 0) + block(n, p, 1)), 0)
        ),
        "Two blocks were counted in every round. How many blocks does a rank have before the first one?",
        EXCHANGE,
    ),
    Mistake(
        "one-block-in-every-round",
        _of(lambda n, p: (_halved(p), _halved(p) * block(n, p, 0), 0)),
        "One block was counted in every round. What has a rank received in the first round that it passes on in the "
        "second?",
        EXCHANGE,
    ),
    Mistake(
        "twice-the-largest",
        _of(lambda n, p: (_halved(p), (p - 1) * block(n, p, 0), 0)),
        "Two blocks were counted as twice the largest one. Which two blocks travel together, and how long are they?",
        EXCHANGE,
    ),
    Mistake(
        "a-ring",
        _of(lambda n, p: (p - 1, (p - 1) * block(n, p, 0), 0)),
        "This is the all-gather round a ring. With how many neighbours does a rank exchange here, and how much?",
        EXCHANGE,
    ),
    Mistake(
        "odd-as-even",
        _of(
            lambda n, p: (
                p // 2,
                block(n, p, 0) * (p > 1) + max(p // 2 - 1, 0) * sum(block(n, p, i) for i in (0, 1)),
                0,
            )
        ),
        "An odd number of ranks was counted like an even one. What does the handout do then?",
        EXCHANGE,
    ),
    Mistake(
        "binomial",
        _tree(doublings),
        "This is the binomial tree, in which every rank sends one message in a level. To how many does it send here?",
        TREE,
    ),
    Mistake(
        "messages-at-once",
        _tree(_levels),
        "A level was counted as one message. How many messages does one rank send in it, one after another?",
        TREE,
    ),
    Mistake(
        "full-levels",
        _tree(lambda p: (RADIX - 1) * _levels(p)),
        "The last level was counted as full. How many ranks are left before it, and who sends to them?",
        TREE,
    ),
    Mistake(
        "root-sends-all",
        _tree(lambda p: p - 1),
        "The root sends to every rank itself. What do the ranks do that have the vector already?",
        TREE,
    ),
    Mistake(
        "radix-children",
        _of(lambda n, p: knomial_tree(n, p, RADIX + 1)),
        "A rank sends to as many others as the radix says, so that one rank becomes five. How many ranks have the "
        "vector after a level of a 4-nomial tree?",
        TREE,
    ),
    Mistake(
        "no-broadcast",
        _of(lambda n, p: _nodes(n, p, broadcasts=0)),
        "There is no broadcast. Who has the result when the first ranks of the nodes are done?",
        LEVELS,
    ),
    Mistake(
        "no-reduce",
        _of(lambda n, p: _nodes(n, p, reduces=0)),
        "There is no reduction inside the nodes. What do the first ranks of the nodes add up?",
        LEVELS,
    ),
    Mistake(
        "flat-ring",
        _of(ring_counts),
        "This is a ring of all ranks. How many ranks of a node take part in the ring?",
        LEVELS,
    ),
    Mistake(
        "full-nodes-only",
        _of(lambda n, p: _nodes(n, p, nodes=max(p // NODE, 1))),
        "A node with fewer ranks was left out. On how many nodes are the ranks?",
        LEVELS,
    ),
    Mistake(
        "linear-inside",
        _of(_linear_inside),
        "Inside a node, the first rank receives from the others in turn. How many rounds does a binomial tree need?",
        LEVELS,
    ),
)
