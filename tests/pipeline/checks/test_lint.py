"""The linter: every rule refuses schedules that break it, made by hand and drawn against the definitions of methods."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridnn.errors import HybridnnError
from hybridnn.pipeline.checks.lint import ScheduleError, lint
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Load,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.placements import PLACEMENTS
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.weight_policies import CURRENT, EXACT, STASHED, WeightRead
from reference.schedule_semantics import Definition, WrongSchedule, check
from reference.schedules import forms, small


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes(method: str) -> None:
    """Fewer minibatches, or microbatches, than stages included."""
    kind = METHODS[method]
    for stages, minibatches in product((1, 2, 3, 5), (1, 3) if kind.cuts_minibatches else (1, 2, 7)):
        for microbatches in (1, 2, 5, 6, 10) if kind.cuts_minibatches else (1,):
            if not kind.can_cut(microbatches, stages):
                continue
            for form, chunks in product(forms(method), kind.chunks[:2]):
                size = {"stages": stages, "minibatches": minibatches, "microbatches": microbatches, "chunks": chunks}
                lint(make_schedule(method, **size, **form))


def test_evaluation_passes() -> None:
    for *size, placement in product((1, 2, 3, 5), (1, 2, 3, 8), (1, 2, 3, 4), PLACEMENTS.values()):
        lint(forward_only(*size, placement))


@pytest.mark.parametrize("method", METHODS)
def test_bounds_are_tight(method: str) -> None:
    """One microbatch less than stated is too few at some stage, so the bound says something."""
    schedule = small(method, 3, 6)
    for stage in range(3):
        bound = list(schedule.activation_bound)
        bound[stage] -= 1
        with pytest.raises(ScheduleError, match=f"but the bound is {bound[stage]}$") as caught:
            lint(replace(schedule, activation_bound=tuple(bound)))
        assert caught.value.stage == stage


def test_too_few_weight_versions() -> None:
    schedule = make_schedule("pipedream", stages=3, minibatches=6)
    less = replace(schedule.policy, versions=lambda stage, stages: 2)
    with pytest.raises(ScheduleError) as caught:
        lint(replace(schedule, policy=less))
    assert str(caught.value) == (
        f"stage 0, instruction {caught.value.position} (update 1): keeps 3 weight versions, but the bound is 2"
    )


Edit = Callable[[list[list[Instruction]]], None]


class Unknown(Instruction):
    name = "dance"


def drop(stage: int, instruction: Instruction) -> Edit:
    return lambda orders: orders[stage].remove(instruction)


def put(stage: int, position: int, instruction: Instruction) -> Edit:
    return lambda orders: orders[stage].insert(position, instruction)


def before(stage: int, instruction: Instruction, other: Instruction) -> Edit:
    """Move an instruction to directly before another."""

    def edit(orders: list[list[Instruction]]) -> None:
        orders[stage].remove(instruction)
        orders[stage].insert(orders[stage].index(other), instruction)

    return edit


def swap(stage: int, instruction: Instruction, other: Instruction) -> Edit:
    def edit(orders: list[list[Instruction]]) -> None:
        order = orders[stage]
        i, j = order.index(instruction), order.index(other)
        order[i], order[j] = order[j], order[i]

    return edit


BROKEN = [
    # Contents of the list
    ("1f1b", drop(1, Forward(0, 2)), "stage 1, end of the list: forward 0.2 is missing"),
    ("1f1b", drop(2, Load(3, 0)), "stage 2, end of the list: load 3 is missing"),
    ("pipedream", drop(2, Update(3)), "stage 2, end of the list: update 3 is missing"),
    ("zb-h1", drop(1, InputGradient(0, 1)), "stage 1, end of the list: input gradient 0.1 is missing"),
    ("zb-h1", drop(1, WeightGradient(0, 1)), "stage 1, end of the list: weight gradient 0.1 is missing"),
    ("1f1b", put(1, 30, Forward(0, 2)), "stage 1, instruction 30 (forward 0.2): is there twice, first as instruc"),
    ("1f1b", put(1, 2, Load(0, 1)), "stage 1, instruction 2 (load 0.1): has no place on this stage"),
    ("1f1b", put(2, 0, SendActivations(0)), "stage 2, instruction 0 (send activations 0): has no place on this stage"),
    ("1f1b", put(0, 5, Update(0, 1)), "stage 0, instruction 5 (update 0.1): has no place on this stage"),
    ("1f1b", put(0, 0, Backward(0, 4)), "stage 0, instruction 0 (backward 0.4): is out of range: there are 4 mini"),
    ("1f1b", put(0, 0, Unknown(0)), "stage 0, instruction 0 (dance 0): is not a known instruction"),
    ("zb-h1", put(1, 40, Backward(0, 1)), "(backward 0.1): computes a gradient of microbatch 1"),
    ("zb-h1", put(1, 40, WeightGradient(0, ALL_MICROBATCHES)), "(weight gradient 0): computes a gradient of microba"),
    # Order on the stage
    ("1f1b", before(0, Forward(0, 1), Load(0, 1)), "(forward 0.1): comes before load 0.1, which it needs"),
    ("1f1b", before(1, Forward(0), ReceiveActivations(0)), "(forward 0): comes before receive activations 0, which"),
    ("1f1b", before(1, Backward(0), ReceiveGradients(0)), "(backward 0): comes before receive gradients 0, which"),
    ("zb-h1", before(1, WeightGradient(0), InputGradient(0)), "(weight gradient 0): comes before input gradient 0"),
    ("fr", before(0, Backward(1), Recompute(1)), "(backward 1): comes before recompute 1, which it needs"),
    ("1f1b", before(2, ReduceGradients(0), Backward(0, 3)), "(reduce gradients 0): comes before backward 0.3, which"),
    ("1f1b", before(2, SendGradients(0, 3), ReceiveActivations(1)), "(update 0): comes before send gradients 0.3,"),
    ("pipedream", swap(2, Update(1), Update(2)), "(update 2): comes before reduce gradients 2"),
    ("pipedream", before(0, Update(1), ReduceGradients(2)), "(backward 2): comes where the gradients of minibatch 1"),
    # Messages
    ("1f1b", swap(1, ReceiveActivations(0, 0), ReceiveActivations(0, 1)), "(forward 0): comes before receive activ"),
    # Weights
    ("vanilla", before(0, Update(0), SendActivations(3)), "(forward 3): reads weight version 1, but the newest is 0"),
]


@pytest.mark.parametrize(("method", "edit", "message"), BROKEN, ids=[case[2][:60] for case in BROKEN])
def test_rules(method: str, edit: Edit, message: str) -> None:
    microbatches = 4 if METHODS[method].cuts_minibatches else 1
    schedule = make_schedule(method, stages=3, minibatches=4, microbatches=microbatches)
    orders = [list(order) for order in schedule.orders]
    edit(orders)
    with pytest.raises(ScheduleError) as caught:
        lint(replace(schedule, orders=tuple(map(tuple, orders))))
    assert message in str(caught.value)
    assert isinstance(caught.value, HybridnnError)
    assert caught.value.exit_code == 2
    position, order = caught.value.position, orders[caught.value.stage]
    assert caught.value.instruction == (order[position] if position < len(order) else None)


def hand_made(*orders: list[Instruction], minibatches: int = 2) -> Schedule:
    """An evaluation on two stages, the shortest lists with messages."""
    return replace(forward_only(2, minibatches), orders=tuple(map(tuple, orders)))


def first(*minibatches: int) -> list[Instruction]:
    return [Load(t) for t in range(2)] + [Forward(t) for t in range(2)] + [SendActivations(t) for t in minibatches]


def last(*minibatches: int) -> list[Instruction]:
    return [ReceiveActivations(t) for t in minibatches] + [one for t in range(2) for one in (Load(t), Forward(t))]


def test_order_of_a_channel() -> None:
    lint(hand_made(first(0, 1), last(0, 1)))
    with pytest.raises(ScheduleError, match=r"\(send activations 1\): is not its turn: forward 0 came before"):
        lint(hand_made(first(1, 0), last(1, 0)))
    with pytest.raises(ScheduleError) as caught:
        lint(hand_made(first(1, 0), last(0, 1)))
    assert str(caught.value).endswith(
        "stage 0 waits at instruction 4 (send activations 1) for stage 1, "
        "stage 1 waits at instruction 0 (receive activations 0) for stage 0"
    )


def test_deadlock_names_the_cycle() -> None:
    """Both stages send first, and each waits for the other to receive: fine only while messages are buffered."""
    schedule = make_schedule("pipedream", stages=2, minibatches=3)
    orders = [list(order) for order in schedule.orders]
    before(1, ReceiveActivations(1), ReduceGradients(0))(orders)
    assert orders[0].index(SendActivations(1)) < orders[0].index(ReceiveGradients(0))
    assert orders[1].index(SendGradients(0)) < orders[1].index(ReceiveActivations(1))
    with pytest.raises(ScheduleError) as caught:
        lint(replace(schedule, orders=tuple(map(tuple, orders))))
    positions = [orders[0].index(SendActivations(1)), orders[1].index(SendGradients(0))]
    assert caught.value.reason == (
        "deadlock where every send blocks until it is received: "
        f"stage 0 waits at instruction {positions[0]} (send activations 1) for stage 1, "
        f"stage 1 waits at instruction {positions[1]} (send gradients 0) for stage 0"
    )


def test_deadlock_of_a_barrier_and_a_message_of_a_rank_to_itself() -> None:
    schedule = make_schedule("ddg", stages=2, minibatches=1, barriers=True)
    orders = (schedule.orders[0], tuple(i for i in schedule.orders[1] if i != Barrier(1)))
    with pytest.raises(ScheduleError, match=r"stage 0 waits at instruction \d+ \(barrier 1\) for stage 1, which has"):
        lint(replace(schedule, orders=orders))
    # Two chunks of one rank: the first hands its output over without a message.
    chunks = [Forward(0, 0, 0), SendActivations(0, 0, 0), ReceiveActivations(0, 0, 1), Forward(0, 0, 1)]
    order = (Load(0), *chunks[:3], Load(0, 0, 1), chunks[3])
    with pytest.raises(ScheduleError, match=r"instruction 2 \(send activations 0\): has no place on this stage"):
        lint(replace(forward_only(1, 1), chunks=2, orders=(order,)))


def test_one_version_means_the_current_one() -> None:
    """1F1B without flush reads old versions; a policy that keeps only one cannot give them."""
    schedule = make_schedule("sequential", stages=2, minibatches=3)
    with pytest.raises(ScheduleError, match="reads weight version 0, but only the current one is kept, version 1"):
        lint(replace(schedule, policy=CURRENT))
    schedule = make_schedule("pipedream", stages=2, minibatches=3)
    with pytest.raises(ScheduleError, match="reads weight version 1, but the newest is 0"):
        lint(replace(schedule, policy=EXACT))


def test_a_prediction_from_an_older_version_is_refused() -> None:
    """The optimizer's velocity is the one after the newest update."""

    def ahead(stage: int, stages: int, minibatch: int) -> WeightRead:
        return STASHED.backward(stage, stages, minibatch)._replace(ahead=1)

    schedule = make_schedule("pipedream", stages=2, minibatches=4)
    with pytest.raises(ScheduleError, match="predicts from version 0, but predictions start from the newest, 1"):
        lint(replace(schedule, policy=replace(STASHED, backward=ahead)))
    assert replace(METHODS["pipedream"], policy=replace(STASHED, backward=ahead)).predicts


def test_lists_and_stages_do_not_match() -> None:
    schedule = make_schedule("gpipe", stages=3, minibatches=1)
    with pytest.raises(ScheduleError, match="there are 2 lists for 3 stages"):
        lint(replace(schedule, orders=schedule.orders[:2]))
    with pytest.raises(ScheduleError, match="there are 2 bounds of activations for 3 stages"):
        lint(replace(schedule, activation_bound=(1, 1)))


Orders = tuple[tuple[Instruction, ...], ...]


def build(definition: Definition) -> Schedule:
    return make_schedule(
        definition.method,
        stages=definition.stages,
        minibatches=definition.minibatches,
        microbatches=definition.microbatches,
        chunks=definition.chunks,
        weight_grad="merged" if definition.merged else "per-microbatch",
    )


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    method = draw(st.sampled_from(sorted(METHODS)))
    stages, minibatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    kind = METHODS[method]
    if not kind.cuts_minibatches:
        return Definition(method, stages, minibatches)
    merged, chunks = not kind.placed_weight_gradients and draw(st.booleans()), kind.chunks[0]
    if chunks > 1:
        stages = max(2, min(stages, 3))
    microbatches = draw(st.integers(1, 7).filter(lambda count: kind.can_cut(count, stages)))
    minibatches = minibatches if not kind.exact else min(minibatches, 2)
    return Definition(method, stages, minibatches, microbatches, chunks, merged=merged and microbatches > 1)


def broken(orders: Orders, edit: str, random: Random) -> Orders:
    """Drop, double or move an instruction of one stage, or swap two."""
    stage = random.randrange(len(orders))
    order = list(orders[stage])
    position = random.randrange(len(order))
    if edit == "swap":
        other = random.randrange(len(order))
        order[position], order[other] = order[other], order[position]
    elif edit == "swap neighbours":
        other = max(0, position - 1)
        order[position], order[other] = order[other], order[position]
    elif edit == "double":
        order.insert(random.randrange(len(order) + 1), order[position])
    else:
        instruction = order.pop(position)
        if edit == "move":
            order.insert(random.randrange(len(order) + 1), instruction)
    return (*orders[:stage], tuple(order), *orders[stage + 1 :])


EDITS = ("drop", "swap", "swap neighbours", "double", "move")


def refused(definition: Definition, orders: Orders) -> bool:
    try:
        check(definition, orders)
    except WrongSchedule:
        return True
    return False


def linted(schedule: Schedule) -> bool:
    """Whether the linter refuses; any other error than its own fails the test."""
    try:
        lint(schedule)
    except ScheduleError:
        return True
    return False


@given(definitions())
def test_schedules_compute_what_their_method_defines(definition: Definition) -> None:
    schedule = build(definition)
    check(definition, schedule.orders)
    lint(schedule)


@given(definitions(), st.lists(st.sampled_from(EDITS), min_size=1, max_size=3), st.integers(0, 2**32))
def test_linter_refuses_wrong_schedules(definition: Definition, edits: list[str], seed: int) -> None:
    schedule, random = build(definition), Random(seed)
    orders = schedule.orders
    for edit in edits:
        orders = broken(orders, edit, random)
    # Without any of these it is an evaluation, which may be correct.
    assume(any(i.name in ("backward", "input gradient", "update") for order in orders for i in order))
    if refused(definition, orders):
        assert linted(replace(schedule, orders=orders))


def small_edits(orders: Orders) -> Iterator[tuple[str, Orders]]:
    """Drop or double every instruction, swap every pair of neighbours, and move every instruction to the front."""
    for stage, order in enumerate(orders):
        for place, item in enumerate(order):
            before, after = order[:place], order[place + 1 :]
            edited = {
                "drop": (*before, *after),
                "double": (*order, item),
                "swap": (*before[:-1], item, *before[-1:], *after),
                "move": (item, *before, *after),
            }
            for edit, changed in edited.items():
                yield edit, (*orders[:stage], changed, *orders[stage + 1 :])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_linter_refuses_every_small_edit_that_is_wrong(method: str) -> None:
    """The definitions refuse edits of every kind, so that these tests are not empty; the linter accepts some others."""
    kind = METHODS[method]
    cut, stages = kind.cuts_minibatches, 2 if kind.microbatches_per_stage > 1 else 3
    microbatches = stages * max(1, kind.microbatches_per_stage) if cut else 1
    definition = Definition(method, stages, 2 if cut else 4, microbatches, kind.chunks[0])
    schedule = build(definition)
    wrong, accepted = dict.fromkeys(("drop", "double", "swap", "move"), 0), 0
    for edit, orders in small_edits(schedule.orders):
        refuses = linted(replace(schedule, orders=orders))
        if refused(definition, orders):
            assert refuses, (edit, orders)
            wrong[edit] += 1
        accepted += orders != schedule.orders and not refuses
    assert wrong["drop"] >= 30
    assert all(wrong.values())
    assert accepted > 0
