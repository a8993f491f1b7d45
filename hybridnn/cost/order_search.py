"""Search for the order of a pipeline's passes that is fastest for given times, and a bound below which none is.

An order is a word for each stage (`hybridnn.pipeline.schedules.computation_orders.in_word`). List scheduling (Graham
1966) makes it from a rule for each stage: the most microbatches in flight, and which pass goes first. A free stage
begins the pass that can begin first; of several, forward pass or input gradient by its rule, weight gradients last.
Local search changes one rule at a time while that makes the step shorter. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise, product
from math import ceil, inf
from typing import NamedTuple

from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import INSTRUCTION, typical_messages, typical_passes
from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Instruction, WeightGradient
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule

LETTERS: dict[type[Instruction], str] = {Forward: "F", InputGradient: "B", WeightGradient: "W", Backward: "BW"}
WARM_UPS = tuple(product((0, 1), (1, 1.5, 2, 3, inf), (0, 1, 2)))  # first letter; a (K - k) + b in flight on stage k
STEPS = ((1, 0), (-1, 0), (0, 1))  # one microbatch in flight more or less, or the other letter first
IMPROVED = 3  # lists of rules with which local search begins
TIMED = 150_000  # passes after which it ends: 8 stages and 32 microbatches take less than 2 s in all


class StageTimes(NamedTuple):
    """Times of a stage, in any unit: the passes of a microbatch, and what is once."""

    forward: float
    input_gradient: float
    weight_gradient: float
    end: float = 0.0  # after the last pass: of the update, and of one product for all weight gradients
    message: float = 0.0  # to the next stage, and back from there


class Found(NamedTuple):
    """An order and its time: infinite if stages wait for each other. Of equal times the one of less memory is less."""

    makespan: float
    in_flight: int  # microbatches, on the stage that has most
    order: tuple[str, ...]


@lru_cache(64)
def search(times: tuple[StageTimes, ...], microbatches: int, limit: int = 0) -> Found:
    """The fastest order found in which no stage has more than `limit` microbatches in flight; 0: all may be.

    No exact method of one chunk per stage within the limit is faster.
    """
    limit, count = min(limit or microbatches, microbatches), len(times)
    bound = (1 + 1e-12) * lower_bound(times, microbatches, limit)
    timed = lru_cache(None)(partial(play, times, microbatches))
    lists = [tuple((min(limit, a * k + b), first) for k in range(count, 0, -1)) for first, a, b in WARM_UPS]
    found = [one for one in map(timed, exact_orders(count, microbatches)) if one.in_flight <= limit]
    for rules in sorted(lists, key=timed)[:IMPROVED]:
        for _ in range(TIMED // (9 * microbatches * count**2)):  # a try times three changes of each stage
            if timed(rules).makespan <= bound:
                break
            changes = ((k, (most + d, first ^ e)) for k, (most, first) in enumerate(rules) for d, e in STEPS)
            others = ((*rules[:k], rule, *rules[k + 1 :]) for k, rule in changes if 1 <= rule[0] <= limit)
            best = min([rules, *others], key=timed)
            if best == rules:
                break
            rules = best
        found.append(timed(rules))
    return min(found)


def exact_orders(stages: int, microbatches: int) -> Iterator[tuple[str, ...]]:
    """The orders of the exact methods that have one chunk per stage."""
    for name in (method.name for method in METHODS.values() if method.exact):
        with suppress(SettingError):  # not of this size
            made = make_schedule(name, stages=stages, minibatches=1, microbatches=microbatches, messages=False)
            yield tuple("".join(LETTERS.get(type(item), "") for item in order) for order in made.orders)


def play(times: Sequence[StageTimes], microbatches: int, rules: Sequence[tuple[float, int] | str]) -> Found:
    """Begin one pass after the other, of those that the rules of the stages choose the earliest.

    A rule is a word, or the most microbatches in flight and the letter that goes first, of forward passes 0 and input
    gradients 1.
    """
    count, letters = len(times), "FBW"
    ready: list[list[list[float]]] = [[[], [], []] for _ in times]  # by stage and letter: when each pass may begin
    ready[0][0] = [0.0] * microbatches
    clocks, done, words, peaks = [0.0] * count, [[0] * 3 for _ in times], [""] * count, [0] * count

    def upcoming(stage: int) -> tuple[float, int, int]:
        made, rule = zip(ready[stage], done[stage], strict=True), rules[stage]
        starts = [max(clocks[stage], items[number]) if number < len(items) else inf for items, number in made]
        if isinstance(rule, str):
            letter = letters.find(rule[len(words[stage]) :][:1] or "F")
            return starts[letter], stage, letter
        if done[stage][0] - done[stage][2] >= rule[0]:
            starts[0] = inf
        letter = min((rule[1], 1 - rule[1], 2), key=starts.__getitem__)
        return starts[letter], stage, letter

    following = [upcoming(stage) for stage in range(count)]
    while (now := min(following))[0] < inf:
        start, stage, letter = now
        words[stage] += letters[letter]
        done[stage][letter] += 1
        peaks[stage] = max(peaks[stage], done[stage][0] - done[stage][2])
        clocks[stage] = end = start + times[stage][letter]
        loss = (stage + 1, 0) if stage < count - 1 else (stage, 1)
        for user, kind in ((loss,), ((stage, 2), (stage - 1, 1)), ())[letter]:
            if user >= 0:
                ready[user][kind].append(end if user == stage else end + times[min(user, stage)].message)
                following[user] = upcoming(user)
        following[stage] = upcoming(stage)
    makespan = max(clock + stage.end for clock, stage in zip(clocks, times, strict=True))
    return Found(makespan if done == [[microbatches] * 3] * count else inf, max(peaks), tuple(words))


def lower_bound(times: Sequence[StageTimes], microbatches: int, limit: int) -> float:
    """A time below which no order is: the work of a stage, and what others do before it and after it.

    Until the first gradient arrives, a stage computes the forward passes of at most `limit` microbatches. These go
    there and back before others follow them.
    """
    first = [sum(stage.forward + stage.message for stage in times) - times[-1].message]  # gradients, last stage first
    for stage, after in zip(times[-2::-1], times[:0:-1], strict=True):
        first.append(first[-1] + after.input_gradient + stage.message)
    begin = finish = bound = 0.0
    for (forward, backward, weight, end, message), gradient in zip(times, reversed(first), strict=True):
        passes = microbatches * backward + max(microbatches * weight + end, finish)
        rounds = ceil(microbatches / limit) * (gradient - begin + backward + weight) + max(end, finish - weight)
        full = gradient + (microbatches - limit) * forward + passes
        bound = max(bound, begin + microbatches * forward + passes, full, begin + rounds)
        begin += forward + message
        finish = max(weight + end, finish) + backward + message
    return bound


# -- orders of a layout ------------------------------------------------------------------------------------------------


def searched(
    layout: Layout, times: Callable[[Layout], Iterable[StageTimes]], limit: object = None, merges: bool | None = None
) -> Layout:
    """A layout with the fastest order by the times of its stages; `limit` as ``parallel.order``, where it is a number.

    Weight gradients of all microbatches are one product if it `merges`; by default if that is faster.
    """
    count, most = layout.microbatches, limit if isinstance(limit, int) else 0
    allowed = (False, True)[: 1 + (most in (0, count))] if merges is None else (merges,)
    candidates = [replace(layout, method="searched", merges=it, order=()) for it in allowed]
    best, merges = min((search(tuple(times(it)), count, most), it.merges) for it in candidates)
    return replace(candidates[0], merges=merges, order=tuple(it.replace("W", "W"[merges:]) for it in best.order))


def typical_times(model: MLP, batch_size: int, itemsize: int, layout: Layout) -> Iterator[StageTimes]:
    """Picoseconds by typical costs: see `hybridnn.pipeline.partition`."""
    samples, ends = ceil(batch_size / layout.microbatches), accumulate(layout.layers, initial=0)
    for (first, end), (batch, ranks) in zip(pairwise(ends), layout.stages, strict=True):
        rows = ceil(samples / batch)
        once, all_at_once = (
            [typical_passes(it, ranks, size, itemsize) / (3 if it.index else 2) for it in model.layers[first:end]]
            for size in (rows, rows * layout.microbatches)
        )
        weight, last = (0.0, INSTRUCTION + sum(all_at_once)) if layout.merges else (INSTRUCTION + sum(once), 0.0)
        message = typical_messages(model.sizes[end] * samples * itemsize) / 2
        yield StageTimes(INSTRUCTION + sum(once), INSTRUCTION + sum(once[not first :]), weight, last, message)
