"""Times of the engine against closed forms, worked examples and the plain simulation without a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.pipeline.schedules.clock import BARRIER, Seconds, compile_schedule, run
from hybridnn.pipeline.schedules.instructions import (
    COMPUTATIONS,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    ReduceGradients,
    WeightGradient,
)
from hybridnn.pipeline.schedules.message_flow import Message
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError
from hybridnn.pipeline.schedules.timing import time_computations

COUNTS = (1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Constant:
    """The same durations on all stages."""

    kinds: Mapping[type[Instruction], Seconds]
    transfer: Seconds = 0.0
    hidden: float = 1.0
    barrier: float = 0.0
    asked: list[Message] = field(default_factory=list)

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        return self.kinds.get(type(instruction), 0.0)

    def message(self, message: Message) -> Seconds:
        self.asked.append(message)
        return self.transfer

    def barrier_seconds(self) -> Seconds:
        return self.barrier


def passes(forward: float, backward: float, **more: Any) -> Constant:
    return Constant({Forward: forward, Recompute: forward, Backward: backward}, **more)


def small(method: str, stages: int, minibatches: int = 3) -> Schedule:
    """A schedule of any method."""
    kind = METHODS[method]
    microbatches = 2 * stages if kind.cuts_minibatches else 1
    chunks = 3 if kind.chunked else 1
    return make_schedule(
        method, stages=stages, minibatches=minibatches, microbatches=microbatches, chunks=chunks, messages=False
    )


@pytest.mark.parametrize("times", [(1, 2), (0.5, 0.75), (3, 1)])
@pytest.mark.parametrize("stages", range(1, 8))
@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b(method: str, stages: int, times: tuple[float, float]) -> None:
    """Huang et al. 2019: (m + K - 1)(t_F + t_B) per flush; bubble fraction (K - 1)/(m + K - 1)."""
    for m in COUNTS:
        schedule = make_schedule(method, stages=stages, minibatches=2, microbatches=m, messages=False)
        done = run(compile_schedule(schedule), passes(*times))
        assert done.makespan == pytest.approx(2 * (m + stages - 1) * sum(times), rel=1e-12)
        assert done.bubble_fraction == pytest.approx((stages - 1) / (m + stages - 1), abs=1e-12)


@pytest.mark.parametrize("stages", range(2, 7))
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved(stages: int, chunks: int) -> None:
    """Narayanan et al. 2021: m (t_F + t_B) + (K - 1)(t_F + t_B)/v; bubble fraction (K - 1)/(v m + K - 1)."""
    for m in (stages, 2 * stages, 5 * stages):
        schedule = make_schedule(
            "interleaved", stages=stages, minibatches=1, microbatches=m, chunks=chunks, messages=False
        )
        done = run(compile_schedule(schedule), passes(1 / chunks, 2 / chunks))
        assert done.makespan == pytest.approx(3 * m + (stages - 1) * 3 / chunks, rel=1e-12)
        assert done.bubble_fraction == pytest.approx((stages - 1) / (chunks * m + stages - 1), abs=1e-12)


@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 2), (1, 1, 0.5), (3, 3, 1)])
@pytest.mark.parametrize("stages", range(1, 9))
def test_zero_bubble_h1(stages: int, times: tuple[float, float, float]) -> None:
    """Qi et al. 2024, Table 2: a bubble of (K - 1)(F + B - W), against (K - 1)(F + B + W) of 1F1B."""
    forward, backward, weight = times
    costs = Constant({Forward: forward, InputGradient: backward, WeightGradient: weight})
    for m in range(stages, 20):
        schedule = make_schedule("zb-h1", stages=stages, minibatches=1, microbatches=m, messages=False)
        makespan = run(compile_schedule(schedule), costs).makespan
        assert makespan == pytest.approx(m * sum(times) + (stages - 1) * (forward + backward - weight), rel=1e-12)


@pytest.mark.parametrize("stages", range(1, 6))
def test_barriers_of_delayed_gradients(stages: int) -> None:
    """Kang 2019, Table 1: K t_F + t_B per minibatch and K - 1 backward phases more; a barrier before and after each."""
    for minibatches in COUNTS:
        schedule = make_schedule("ddg", stages=stages, minibatches=minibatches)
        barriers = (minibatches - 1) + (minibatches + stages - 1)
        done = run(compile_schedule(schedule), passes(1, 2, barrier=10.0))
        assert done.program.order.count(BARRIER) == barriers
        assert done.makespan == minibatches * (stages + 2) + (stages - 1) * 2 + 10 * barriers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("transfer", [0.0, 0.6])
def test_the_same_times_as_without_a_machine(method: str, stages: int, transfer: float) -> None:
    """With messages hidden altogether, to the last bit; whether or not loads and messages are placed."""
    schedule = small(method, stages)
    costs = Uneven(transfer, 1.0)
    times = time_computations(schedule, costs.duration, transfer)
    for same in (schedule, with_messages(schedule)):
        done = run(compile_schedule(same), costs)
        for stage, order in enumerate(schedule.orders):
            own = done.program.of(stage)
            wanted = [
                (instruction, start, end)
                for instruction, start, end in zip(order, times.starts[stage], times.ends[stage], strict=True)
                if isinstance(instruction, COMPUTATIONS)
            ]
            found = zip(done.program.computations[own], done.starts[own].tolist(), done.ends[own].tolist(), strict=True)
            assert list(found) == wanted


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
    assert done.communication.tolist() == [2 * taken, 2 * taken]
    assert done.busy.tolist() == [6, 6]
    assert done.bubble.tolist() == pytest.approx([done.makespan - 6 - 2 * taken] * 2)


def test_waits_receiving_and_computing_fill_the_time() -> None:
    done = run(compile_schedule(small("1f1b", 4)), Uneven(0.6, 0.3))
    for stage in range(4):
        own = done.program.of(stage)
        filled = (done.waits + done.receiving + done.ends - done.starts)[own].sum()
        assert filled == pytest.approx(done.ends[own][-1])
        assert (done.waits[own] >= -1e-12).all()


@pytest.mark.parametrize("method", METHODS)
def test_arrays_are_runs_of_their_own(method: str) -> None:
    """Without `meet`, every place of an array is one run of numbers."""
    program = compile_schedule(small(method, 3))
    many = [{kind: float(number + 2 * place + 1) for number, kind in enumerate(COMPUTATIONS)} for place in range(4)]
    kinds = {kind: np.array([one[kind] for one in many]) for kind in COMPUTATIONS}
    transfers = [0.0, 0.5, 1.0, 7.0]
    together = run(program, Constant(kinds, np.array(transfers), 0.5, 0.25))
    for place, (one, transfer) in enumerate(zip(many, transfers, strict=True)):
        alone = run(program, Constant(one, transfer, 0.5, 0.25))
        for name in ("starts", "ends", "receiving", "waits", "busy", "communication", "bubble"):
            assert getattr(together, name)[:, place].tolist() == pytest.approx(getattr(alone, name).tolist())
        assert together.makespan[place] == pytest.approx(alone.makespan)
        assert together.bubble_fraction[place] == pytest.approx(alone.bubble_fraction)


def test_replicas_meet() -> None:
    """Two replicas, the second twice as slow: both start the reduction of a stage when the slower one comes."""
    program = compile_schedule(make_schedule("1f1b", stages=2, minibatches=1, microbatches=3, messages=False))

    def meet(stage: int, instruction: Instruction, times: Any) -> Any:
        return np.full_like(times, times.max()) if isinstance(instruction, ReduceGradients) else times

    kinds = {Forward: np.array([1.0, 2.0]), Backward: np.array([2.0, 4.0]), ReduceGradients: 5.0}
    done = run(program, Constant(kinds), meet)
    # (m + K - 1)(t_F + t_B) of the slower one at stage 0, then the reduction.
    assert done.makespan.tolist() == [4 * 6 + 5.0] * 2
    assert done.busy.tolist() == [[3 * 3 + 5, 3 * 6 + 5]] * 2


def test_replicas_meet_at_barriers() -> None:
    """One is slow in the forward pass, the other in the backward pass: each phase takes what the slower one takes."""
    program = compile_schedule(make_schedule("ddg", stages=3, minibatches=4))
    costs = Constant({Forward: np.array([1.0, 2.0]), Backward: np.array([5.0, 2.0])})
    assert run(program, costs, lambda stage, instruction, times: times).makespan.tolist() == [
        4 * (3 * 2 + 5) + 2 * 5,
        4 * (3 * 2 + 5) + 1 * 5 + 2,
    ]


@given(st.sampled_from(sorted(METHODS)), st.integers(1, 6))
def test_order_of_a_program(method: str, stages: int) -> None:
    """Everything once, after what it needs and after what its stage does before."""
    program = compile_schedule(small(method, stages))
    places = [place for place in program.order if place != BARRIER]
    when = {place: moment for moment, place in enumerate(places)}
    assert sorted(places) == list(range(len(program.computations)))
    for place, need in enumerate(program.needs):
        assert need < 0 or when[need] < when[place]
        assert place == program.offsets[program.stages[place]] or when[place - 1] < when[place]


def test_each_message_is_asked_for_once() -> None:
    costs = passes(1, 2)
    run(compile_schedule(small("1f1b", 3, minibatches=1)), costs)
    ends = sorted((message[0].sender, message[0].receiver, message[2]) for message in costs.asked)
    assert ends == sorted((a, b, m) for a, b in [(0, 1), (1, 2), (2, 1), (1, 0)] for m in range(6))


def test_a_circle_is_refused() -> None:
    schedule = small("gpipe", 2, minibatches=1)
    first = schedule.orders[0]
    broken = replace(schedule, orders=(first[::-1], schedule.orders[1]))
    with pytest.raises(ScheduleError, match=r"stage 0, instruction 2 \(backward 0.3\): waits for something"):
        compile_schedule(broken)
    with pytest.raises(ScheduleError, match=r"stage 0, instruction 0 \(backward 0\): waits for something"):
        compile_schedule(replace(schedule, orders=(first[4:], schedule.orders[1])))


@dataclass(frozen=True)
class Uneven:
    """Durations that differ by stage, kind, microbatch and chunk."""

    transfer: float
    hidden: float

    def duration(self, stage: int, instruction: Instruction) -> float:
        number = COMPUTATIONS.index(type(instruction))
        return 1.1 + 0.1 * stage + 0.7 * number + 0.01 * instruction.microbatch + 0.3 * instruction.chunk

    def message(self, message: Message) -> float:
        return self.transfer

    def barrier_seconds(self) -> float:
        return 0.0


def with_messages(schedule: Schedule) -> Schedule:
    return make_schedule(
        schedule.method,
        stages=schedule.stages,
        minibatches=schedule.minibatches,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks if schedule.stages > 1 else 1 + METHODS[schedule.method].chunked,
    )
