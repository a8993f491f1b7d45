"""The clock of schedules against an independent implementation, closed forms and worked examples."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.cost.prediction.predict import run
from hybridnn.cost.prediction.times import PARTS, MessageTimes, parts_of_efficiency
from hybridnn.pipeline.checks.simulated_schedule import split_idle
from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, Message, compile_schedule
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Backward, Barrier, Forward, Instruction, Recompute
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.schedule import ScheduleError
from reference.schedules import small, times_of_computations


@dataclass(frozen=True)
class Costs:
    """Durations by stage and instruction; all messages cost the same."""

    duration: Callable[[int, Instruction], float]
    transfer: float = 0.0
    hidden: float = 1.0
    barrier: float = 0.0
    occupied: float = 0.0

    def message(self, message: Message) -> MessageTimes:
        return MessageTimes(self.transfer, self.occupied)

    def barrier_seconds(self) -> float:
        return self.barrier


def passes(forward: float, backward: float, **more: Any) -> Costs:
    """The same durations on all stages."""
    kinds = {Forward: forward, Recompute: forward, Backward: backward}
    return Costs(lambda stage, instruction: kinds.get(type(instruction), 0.0), **more)


def uneven(stage: int, instruction: Instruction) -> float:
    """Durations that differ by stage, kind, microbatch and chunk."""
    number = COMPUTATIONS.index(type(instruction))
    return 1.1 + 0.1 * stage + 0.7 * number + 0.01 * instruction.microbatch + 0.3 * instruction.chunk


def test_barriers_of_delayed_gradients() -> None:
    """Kang 2019, Table 1: K t_F + t_B per minibatch and K - 1 backward phases more; a barrier before and after each."""
    for stages, minibatches in product((1, 2, 3, 5), (1, 2, 3, 8)):
        schedule = make_schedule("ddg", stages=stages, minibatches=minibatches, barriers=True)
        barriers = (minibatches - 1) + (minibatches + stages - 1)
        done = run(compile_schedule(schedule), passes(1, 2, barrier=10.0))
        assert done.program.order.count(BARRIER) == barriers
        assert done.makespan == minibatches * (stages + 2) + (stages - 1) * 2 + 10 * barriers


@pytest.mark.parametrize("method", METHODS)
def test_hidden_messages_against_the_reference(method: str) -> None:
    """To the last bit, with and without loads and messages in the lists."""
    for stages, transfer, messages in product((1, 2, 5), (0.0, 0.6), (False, True)):
        costs = Costs(uneven, transfer)
        schedule = small(method, stages, chunks=3, messages=messages)
        starts, ends = times_of_computations(schedule, costs.duration, transfer)
        done = run(compile_schedule(schedule), costs)
        for stage, order in enumerate(schedule.orders):
            own = done.program.of(stage)
            kept = [item for item in order if isinstance(item, (Barrier, *COMPUTATIONS))]
            expected = [
                (item, start, end)
                for item, start, end in zip(kept, starts[stage], ends[stage], strict=True)
                if not isinstance(item, Barrier)
            ]
            found = zip(done.program.computations[own], done.starts[own].tolist(), done.ends[own].tolist(), strict=True)
            assert list(found) == expected


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=6), st.integers(1, 8))
def test_stages_of_different_speed(speeds: list[float], minibatches: int) -> None:
    """Equal jobs through machines in a row: the sum of all times, and the slowest once more for every further job."""
    costs = Costs(lambda stage, _: speeds[stage])
    makespan = run(compile_schedule(forward_only(len(speeds), minibatches)), costs).makespan
    assert makespan == pytest.approx(sum(speeds) + (minibatches - 1) * max(speeds))


@pytest.mark.parametrize("hidden", [0.0, 0.25, 1.0])
def test_messages_by_hand(hidden: float) -> None:
    """Two stages, two microbatches, transfer 4: what is not hidden occupies the receiver, after it is free."""
    schedule = make_schedule("gpipe", stages=2, minibatches=1, microbatches=2, messages=False)
    done = run(compile_schedule(schedule), passes(1, 2, transfer=4.0, hidden=hidden))
    taken = 4 * (1 - hidden)
    first, second = done.program.of(0), done.program.of(1)
    # Microbatches are made at 1 and 2 and arrive at 5 and 6, but no sooner than `taken` after the first was computed.
    forward_2 = max(6 + taken, 6)
    backward_1 = forward_2 + 1
    assert done.starts[second].tolist()[:4] == [5, forward_2, backward_1, backward_1 + 2]
    # Their gradients are made `2` apart; stage 0 receives one after the other.
    gradient_1 = backward_1 + 2 + 4
    assert done.starts[first].tolist()[:4] == [0, 1, gradient_1, max(gradient_1 + 2 + taken, gradient_1 + 2)]
    assert done.receiving[second].tolist()[:3] == [taken, taken, 0]
    assert done.communication == [2 * taken, 2 * taken]
    assert done.busy == [6, 6]


@given(st.integers(1, 9), st.floats(0.1, 3), st.floats(0, 3), st.floats(0, 5))
def test_messages_of_one_direction_share_their_link(count: int, forward: float, alpha: float, occupied: float) -> None:
    """Two stages: a producer, a link and a consumer are three machines in a row; alpha delays every message alike."""
    program = compile_schedule(forward_only(2, count))
    costs = passes(forward, 0.0, transfer=alpha + occupied, occupied=occupied)
    expected = 2 * forward + alpha + occupied + (count - 1) * max(forward, occupied)
    assert run(program, costs).makespan == pytest.approx(expected)


@pytest.mark.parametrize("method", METHODS)
def test_links_of_both_directions_are_independent(method: str) -> None:
    """With links that are never busy twice, occupying them changes nothing; with busy ones, nothing is faster."""
    program = compile_schedule(small(method, 3, messages=False))
    free, slow = (run(program, passes(1.0, 2.0, transfer=0.5, occupied=occupied)) for occupied in (0.0, 4.0))
    brief = run(program, passes(1.0, 2.0, transfer=0.5, occupied=1e-9))
    assert brief.makespan == pytest.approx(free.makespan)
    assert (slow.starts >= free.starts - 1e-12).all()
    # A stage receives `count` messages from each neighbour, one after another.
    most = max(Counter((m[0].sender, m[0].receiver) for m in program.messages if m is not None).values())
    assert slow.makespan >= 4.0 * (most - 1)


@given(st.sampled_from(sorted(METHODS)), st.integers(1, 6))
def test_order_of_a_program(method: str, stages: int) -> None:
    """Everything once, after what it needs and after what its stage does before."""
    program = compile_schedule(small(method, stages, messages=False))
    places = [place for place in program.order if place != BARRIER]
    when = {place: moment for moment, place in enumerate(places)}
    assert sorted(places) == list(range(len(program.computations)))
    for place, need in enumerate(program.needs):
        assert need < 0 or when[need] < when[place]
        assert place == program.offsets[program.stages[place]] or when[place - 1] < when[place]


def test_a_deadlock_is_refused() -> None:
    schedule = small("gpipe", 2, 1, messages=False)
    first = schedule.orders[0]
    broken = replace(schedule, orders=(first[::-1], schedule.orders[1]))
    with pytest.raises(ScheduleError, match=r"stage 0, instruction 2 \(backward 0.3\): waits for something"):
        compile_schedule(broken)
    with pytest.raises(ScheduleError, match=r"stage 0, instruction 0 \(backward 0\): waits for something"):
        compile_schedule(replace(schedule, orders=(first[4:], schedule.orders[1])))


NAMES = ("compute", "overhead", "communicate", "bubble", "wait")


def test_parts_add_up_to_the_efficiency() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        base = dict(zip(NAMES, random.random(5), strict=True))
        own = {name: seconds + random.random() for name, seconds in base.items()}
        parts = parts_of_efficiency(own, base)
        assert tuple(parts) == PARTS
        assert sum(parts.values()) == pytest.approx(1)
        assert parts["compute"] == pytest.approx(sum(base.values()) / sum(own.values()))
        assert parts["smaller products"] == pytest.approx((own["compute"] - base["compute"]) / sum(own.values()))


def test_time_that_is_saved_is_subtracted_from_compute() -> None:
    base, own = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    base |= {"compute": 4.0, "overhead": 1.0}
    own |= {"compute": 3.0, "overhead": 1.0, "wait": 4.0}
    parts = parts_of_efficiency(own, base)
    assert {name: share for name, share in parts.items() if share} == {"compute": 0.5, "wait": 0.5}


def test_idle_time_beyond_the_bubble_is_waiting() -> None:
    assert split_idle(0.69, 0.11) == (0.11, pytest.approx(0.58))
    assert split_idle(0.05, 0.11) == (0.05, 0)
