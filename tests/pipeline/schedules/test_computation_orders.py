"""Orders of the methods against their definitions and the published tables, and the memory that they need."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    COMPUTATIONS,
    Forward,
    ReceiveActivations,
    SendActivations,
    WeightGradient,
)
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.placements import PLACEMENTS
from hybridnn.pipeline.schedules.program import MemoryPlan, plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.schedules import forms, small


def compute(schedule: Schedule, stage: int) -> list[str]:
    """Passes of a stage: F, B, I, W, R and their microbatch, or minibatch where none is cut."""
    letters = {"forward": "F", "backward": "B", "input gradient": "I", "weight gradient": "W", "recompute": "R"}
    return [
        f"{letters[i.name]}{i.microbatch if schedule.microbatches > 1 else i.minibatch}"
        for i in schedule.orders[stage]
        if i.name in letters
    ]


def steady(schedule: Schedule, stage: int, start: str, end: str) -> list[str]:
    """The instructions of a stage from one to another, both included."""
    order = [str(i) for i in schedule.orders[stage]]
    return order[order.index(start) : order.index(end) + 1]


@pytest.mark.parametrize("method", ["1f1b", "pipedream", "vanilla", "spectrain"])
def test_warm_up(method: str) -> None:
    """Stage k begins with K-1-k forward passes, then one forward and one backward pass in turn."""
    for stages, count in product((1, 2, 3, 5, 8), (1, 2, 5, 12)):
        size = {"microbatches": count, "minibatches": 1} if method == "1f1b" else {"minibatches": count}
        schedule = make_schedule(method, stages=stages, **size)
        for stage in range(stages):
            letters = "".join(one[0] for one in compute(schedule, stage))
            warm_up = min(stages - 1 - stage, count)
            assert letters == "F" * warm_up + "FB" * (count - warm_up) + "B" * warm_up


def test_gpipe() -> None:
    for stages in (1, 2, 5):
        schedule = make_schedule("gpipe", stages=stages, minibatches=1, microbatches=3)
        assert all(compute(schedule, k) == ["F0", "F1", "F2", "B0", "B1", "B2"] for k in range(stages))


def test_zero_bubble_by_hand() -> None:
    """Stage k computes weight gradients k microbatches late."""
    schedule = make_schedule("zb-h1", stages=3, minibatches=1, microbatches=4)
    assert " ".join(compute(schedule, 0)) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"
    assert " ".join(compute(schedule, 1)) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"
    assert " ".join(compute(schedule, 2)) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


def test_interleaved_by_hand() -> None:
    """K = 2, v = 2, M = 4: the chunk changes after every K microbatches; backward passes begin with the last chunk."""
    schedule = make_schedule("interleaved", stages=2, minibatches=1, microbatches=4, chunks=2)
    named = [
        " ".join(f"{i.name[0]}{i.microbatch}{'ab'[i.chunk]}" for i in order if i.name in ("forward", "backward"))
        for order in schedule.orders
    ]
    assert named == [
        "f0a f1a f0b f1b f2a b0b f3a b1b f2b b0a f3b b1a b2b b3b b2a b3a",
        "f0a f1a f0b b0b f1b b1b f2a b0a f3a b1a f2b b2b f3b b3b b2a b3a",
    ]


def test_merged_is_plain_with_one_microbatch() -> None:
    for name, method in METHODS.items():
        if not (method.placed_weight_gradients or 1 not in method.chunks or method.microbatches_per_stage):
            merged = make_schedule(name, stages=2, minibatches=3, weight_grad="merged")
            assert merged == make_schedule(name, stages=2, minibatches=3)


class TestTables:
    """Kang 2019, Tables 2 to 5, for a middle device, and for the first and the last one.

    Two things differ on purpose. "Do the backward pass to update the weight; get the gradient; send it" is one line of
    the tables: here the gradient leaves before the update, because the stage before waits for it and for nothing else.
    Table 5 sends a gradient with the next step's messages; here the same order begins at the end of the backward pass.
    """

    def test_sequential(self) -> None:
        """Table 2."""
        schedule = make_schedule("sequential", stages=3, minibatches=6)
        assert steady(schedule, 0, "load 4", "update 4") == [
            "load 4", "forward 4", "send activations 4",
            "receive gradients 4", "backward 4", "reduce gradients 4", "update 4",
        ]  # fmt: skip
        assert steady(schedule, 1, "receive activations 4", "update 4") == [
            "receive activations 4", "forward 4", "send activations 4",
            "receive gradients 4", "backward 4", "send gradients 4", "reduce gradients 4", "update 4",
        ]  # fmt: skip
        assert steady(schedule, 2, "receive activations 4", "update 4") == [
            "receive activations 4", "load 4", "forward 4",
            "backward 4", "send gradients 4", "reduce gradients 4", "update 4",
        ]  # fmt: skip

    def test_delayed_gradients(self) -> None:
        """Table 3, K = 3, step t = 5: device k computes with the gradient of t - K + k (k from 1) received before."""
        schedule = make_schedule("ddg", stages=3, minibatches=9, barriers=True)
        assert steady(schedule, 0, "load 5", "receive gradients 4") == [
            "load 5", "forward 5", "send activations 5", "barrier 5",
            "backward 3", "reduce gradients 3", "update 3", "receive gradients 4",
        ]  # fmt: skip
        assert steady(schedule, 1, "receive activations 5", "receive gradients 5") == [
            "receive activations 5", "forward 5", "send activations 5", "barrier 5",
            "backward 4", "send gradients 4", "reduce gradients 4", "update 4", "receive gradients 5",
        ]  # fmt: skip
        assert steady(schedule, 2, "receive activations 5", "update 5") == [
            "receive activations 5", "load 5", "forward 5", "barrier 5",
            "backward 5", "send gradients 5", "reduce gradients 5", "update 5",
        ]  # fmt: skip

    def test_features_replay(self) -> None:
        """Table 4: as Table 3, and the activations are recomputed before the backward pass."""
        schedule = make_schedule("fr", stages=3, minibatches=9, barriers=True)
        assert steady(schedule, 0, "load 5", "receive gradients 4") == [
            "load 5", "forward 5", "send activations 5", "barrier 5",
            "recompute 3", "backward 3", "reduce gradients 3", "update 3", "receive gradients 4",
        ]  # fmt: skip
        assert steady(schedule, 1, "receive activations 5", "receive gradients 5") == [
            "receive activations 5", "forward 5", "send activations 5", "barrier 5",
            "recompute 4", "backward 4", "send gradients 4", "reduce gradients 4", "update 4", "receive gradients 5",
        ]  # fmt: skip
        assert steady(schedule, 2, "receive activations 5", "update 5") == [
            "receive activations 5", "load 5", "forward 5", "barrier 5",
            "backward 5", "send gradients 5", "reduce gradients 5", "update 5",
        ]  # fmt: skip

    def test_pipedream(self) -> None:
        """Table 5: receive, send the gradient of the step before, forward, send, receive the gradient, backward."""
        schedule = make_schedule("pipedream", stages=3, minibatches=9)
        assert steady(schedule, 0, "load 5", "update 3") == [
            "load 5", "forward 5", "send activations 5",
            "receive gradients 3", "backward 3", "reduce gradients 3", "update 3",
        ]  # fmt: skip
        assert steady(schedule, 1, "receive activations 5", "backward 4") == [
            "receive activations 5", "send gradients 3", "reduce gradients 3", "update 3",
            "forward 5", "send activations 5", "receive gradients 4", "backward 4",
        ]  # fmt: skip
        last = steady(schedule, 2, "load 5", "backward 5")
        assert last == ["load 5", "forward 5", "backward 5"]


@pytest.mark.parametrize("method", METHODS)
def test_loads_and_sends_are_next_to_their_pass(method: str) -> None:
    """Results are sent before any other pass or update; loads are for the next pass."""
    schedule = small(method, 3, 4)
    makes = {"send activations": ("forward",), "send gradients": ("backward", "input gradient")}
    for order in schedule.orders:
        for position, i in enumerate(order):
            part = (i.minibatch, i.microbatch, i.chunk)
            if i.name in makes:
                before = next(o for o in reversed(order[:position]) if not o.name.startswith("receive"))
                assert before.name in makes[i.name]
                assert (before.minibatch, before.microbatch, before.chunk) == part
            if i.name == "load":
                assert order[position + 1] == Forward(*part)


def test_options_that_change_no_order() -> None:
    # With one stage, interleaved is 1F1B over the whole network: a rank would have to send to itself.
    interleaved = make_schedule("interleaved", stages=1, minibatches=2, microbatches=3, chunks=4)
    assert interleaved.chunks == forward_only(1, 3, 4).chunks == 1
    assert interleaved.orders == make_schedule("1f1b", stages=1, minibatches=2, microbatches=3).orders
    plain, synchronized = (make_schedule(f"pipedream{v}", stages=3, minibatches=5) for v in ("", "-vsync"))
    assert plain.orders == synchronized.orders
    assert plain.policy.name != synchronized.policy.name


@pytest.mark.parametrize("method", METHODS)
def test_without_messages_the_computations_are_the_same(method: str) -> None:
    for stages in (1, 2, 4):
        placed, bare = small(method, stages), small(method, stages, messages=False)
        for stage in range(stages):
            expected = [item for item in placed.orders[stage] if isinstance(item, COMPUTATIONS)]
            assert [item for item in bare.orders[stage] if isinstance(item, COMPUTATIONS)] == expected
            assert METHODS[method].placed_messages or len(bare.orders[stage]) == len(expected)
        has_messages = any(isinstance(item, SendActivations | ReceiveActivations) for item in placed.orders[0])
        assert has_messages == (stages > 1)


WRONG = [
    ({"method": "pipdream"}, "parallel.method = 'pipdream': did you mean pipedream?"),
    ({"method": None}, "parallel.method = None: must be 'sequential', 'gpipe'"),
    ({"method": ["1F1B"]}, "parallel.method = ['1F1B']: did you mean 1f1b?"),
    ({"method": "ddg", "microbatches": 2}, "parallel.microbatches = 2: 1 with ddg, which splits no minibatch"),
    ({"method": "interleaved", "microbatches": 4}, "parallel.chunks = 1: 2 or more with interleaved"),
    ({"method": "interleaved", "chunks": 2, "microbatches": 5}, "parallel.microbatches = 5: a multiple of the 2 st"),
    ({"method": "hanayo", "chunks": 3}, "parallel.chunks = 3: even, 2 or more with hanayo"),
    ({"method": "zb-v", "chunks": 2, "microbatches": 3}, "parallel.microbatches = 3: at least 2 times the 2 stages"),
    ({"method": "1f1b", "chunks": 2}, "parallel.chunks = 2: 1 with 1f1b; more only with interleaved"),
    ({"method": "zb-h1", "weight_grad": "merged"}, "weight_grad = 'merged': zb-h1 places"),
    ({"method": "searched", "order": ["FBW", "FB"], "weight_grad": "merged"}, "weight_grad = 'merged': searched pl"),
    ({"method": "searched", "order": ["FB"]}, "parallel.order = ['FB']: a word for each of 2 stages, with F, B and W"),
    ({"method": "searched", "order": ["FB", "FX"]}, "parallel.order = ['FB', 'FX']: a word for each of 2 stages, wi"),
    ({"method": "1f1b", "weight_grad": "both"}, "weight_grad = 'both': must be 'per-microbatch' or 'merged'"),
    ({"method": "1f1b", "stages": 0}, "parallel.pipeline = 0: must be a whole number, at least 1"),
    ({"method": "1f1b", "minibatches": 0}, "minibatches = 0: must be a whole number, at least 1"),
    ({"method": "1f1b", "microbatches": 1.5}, "parallel.microbatches = 1.5: must be a whole number, at least 1"),
    ({"method": "interleaved", "chunks": -1}, "parallel.chunks = -1: must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_schedule(**{"stages": 2, "minibatches": 3, **arguments})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


STAGES = (1, 2, 3, 4, 6)


def plans(schedule: Schedule) -> list[MemoryPlan]:
    return [plan_memory(schedule, stage) for stage in range(schedule.stages)]


@pytest.mark.parametrize("m", [1, 2, 3, 7, 12])
def test_live_activations_of_exact_methods(m: int) -> None:
    """All m at every stage with gpipe, min(K - k, m) with 1f1b, K everywhere with zb-h1."""
    for k in STAGES:
        held = {"gpipe": [m] * k, "1f1b": [min(k - i, m) for i in range(k)], "zb-h1": [min(k, m)] * k}
        for method, expected in held.items():
            made = make_schedule(method, stages=k, minibatches=2, microbatches=m)
            assert [plan.peak_live_activations for plan in plans(made)] == expected


def test_an_output_is_kept_while_the_next_chunk_needs_it_as_its_input() -> None:
    """Stage 1 of two in a V, where the weight gradient of chunk 1 comes after that of chunk 0."""
    made, late = small("v-min", 2, 1), WeightGradient(0, 0, 1)
    order = [item for item in made.orders[1] if item != late]
    order.insert(order.index(WeightGradient(0)) + 1, late)
    plan = plan_memory(replace(made, orders=(made.orders[0], tuple(order))), 1)
    assert plan.activation_lifetimes[Forward(0)][1] == order.index(late)


@pytest.mark.parametrize("method", ["sequential", "ddg", "pipedream", "fr"])
def test_memory_of_kang_table_1(method: str) -> None:
    """1 minibatch; K - k + 1 at device k, from 1, with ddg and pipedream; only the inputs with fr."""
    for stages, minibatches in product(STAGES, (1, 2, 3, 11)):
        stored = [min(stages - k, minibatches) for k in range(stages)]
        found = plans(make_schedule(method, stages=stages, minibatches=minibatches))
        activations = [plan.peak_live_activations for plan in found]
        inputs = [plan.peak_live_inputs for plan in found]
        versions = [plan.peak_weight_versions for plan in found]
        assert activations == ([1] * stages if method in ("sequential", "fr") else stored)
        assert inputs == ([1] * stages if method == "sequential" else stored)
        if method in ("sequential", "fr"):
            assert versions == [1] * stages
        elif minibatches >= 2 * stages - 1:  # long enough for the versions to differ: K - k
            assert versions == [stages - k for k in range(stages)]
        else:
            assert all(count <= stages - k for k, count in enumerate(versions))


def test_merged_weight_gradients_keep_everything() -> None:
    """Activations wait for the product over all microbatches, but their buffers are free after the input gradient."""
    found = plans(make_schedule("1f1b", stages=3, minibatches=2, microbatches=5, weight_grad="merged"))
    assert [plan.peak_live_activations for plan in found] == [5, 5, 5]
    assert [plan.activations for plan in found] == [(3,), (2,), (1,)]


def test_position_of_the_peak() -> None:
    """1f1b, K = 3, stage 1, M = 4: the second forward pass; pipedream, stage 0: the update that makes version 2."""
    schedule = make_schedule("1f1b", stages=3, minibatches=1, microbatches=4)
    assert str(schedule.orders[1][plan_memory(schedule, 1).peak_activations_at]) == "forward 0.1"
    schedule = make_schedule("pipedream", stages=3, minibatches=9)
    assert str(schedule.orders[0][plan_memory(schedule, 0).peak_versions_at]) == "update 1"


def schedules_of(method: str) -> Iterator[Schedule]:
    """Schedules of a method of several sizes, or evaluations."""
    if method == "evaluation":
        for minibatches, chunks, placement in product((1, 5), (1, 2, 4), PLACEMENTS.values()):
            yield forward_only(3, minibatches, chunks, placement)
        return
    for stages, minibatches, form in product((1, 2, 4), (1, 3, 6), list(forms(method))):
        yield small(method, stages, minibatches, 3, **form)


@pytest.mark.parametrize("method", [*METHODS, "evaluation"])
def test_buffers_hold_the_data_that_are_read(method: str) -> None:
    """Each read of a buffer returns the data that were written for its microbatch."""
    for schedule, stage in ((one, stage) for one in schedules_of(method) for stage in range(one.stages)):
        plan = plan_memory(schedule, stage)
        inputs: dict[tuple[int, int], Any] = {}
        activations: dict[tuple[int, int], Any] = {}
        last_pass: dict[Any, int] = {}
        splits = {i.minibatch for i in schedule.orders[stage] if i.microbatch == ALL_MICROBATCHES}
        for i in schedule.orders[stage]:
            part, c = (i.minibatch, i.microbatch, i.chunk), i.chunk
            # The input may be the output of the chunk before.
            taken = c > 0 and schedule.before(stage, c)[0] == stage
            before = i.minibatch, i.microbatch, c - 1
            if i.name in ("load", "forward", "recompute") and not taken:
                slot = plan.input_slots[part]
                assert slot < plan.inputs[c]
                loaded = i.name == "load" or (i.name == "forward" and not schedule.is_first(stage, c))
                if loaded:
                    inputs[c, slot] = part
                assert inputs[c, slot] == part
            if i.name in ("forward", "recompute"):
                last_pass[part] = plan.activation_slots[i]
                assert last_pass[part] < plan.activations[c]
                activations[c, last_pass[part]] = part
            own_weights = i.name == "weight gradient" and i.minibatch not in splits
            if taken and (i.name in ("forward", "backward", "input gradient") or own_weights):
                assert activations[c - 1, plan.input_slots[part]] == before
            if i.name in ("backward", "input gradient") or own_weights:
                assert taken or inputs[c, plan.input_slots[part]] == part
                assert activations[c, last_pass[part]] == part


@pytest.mark.parametrize("method", [*METHODS, "evaluation"])
def test_last_readers(method: str) -> None:
    """A version that is read after its update is kept exactly until its last reader, counted by brute force."""
    for schedule, stage in ((one, stage) for one in schedules_of(method) for stage in range(one.stages)):
        plan = plan_memory(schedule, stage)
        order = schedule.orders[stage]
        reads = [
            (position, read.version)
            for position, i in enumerate(order)
            if (read := schedule.weights_read(stage, i)) is not None
        ]
        updates = [position for position, i in enumerate(order) if i.name == "update"]
        late = {v: position for position, v in reads if v < len(updates) and position > updates[v]}
        assert plan.last_readers == late
        stashed = [sum(updates[v] <= position <= last for v, last in late.items()) for position in range(len(order))]
        assert plan.peak_weight_versions == 1 + max(stashed)
