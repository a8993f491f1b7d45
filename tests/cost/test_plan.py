"""Layouts that can be planned; plans against predictions of all of them and known optima; lower bounds."""

import re
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest

from hybridnn import MLP, SGD
from hybridnn.cost import plan as planning
from hybridnn.cost.machine import Machine, Quality
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.order_search import searched
from hybridnn.cost.plan import (
    StepBounds,
    best_curve,
    best_exact,
    faster_points,
    feasible_layouts,
    layout_advice,
    most_ranks,
    plan,
    reason_sentence,
    with_searched,
)
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import replica_groups
from hybridnn.cost.prediction.memory import largest_memory
from hybridnn.cost.prediction.predict import Prediction, balanced_layers, predict, scaling_curve
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.errors import SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from reference.machines import make_machine

WORKLOAD = Workload(MLP([32, 64, 64, 64, 64, 16]), 4000, 64)
EVEN = Workload(MLP([64] * 9), 4096, 64, classification=False)
MIXED = make_machine(alpha=1e-6, beta=1e-9, multiply_add=1e-10, call=1e-6)


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> list[Prediction]:
    """Every prediction that is made."""
    made: list[Prediction] = []

    def counted(*arguments: Any) -> Prediction:
        made.append(predict(*arguments))
        return made[-1]

    monkeypatch.setattr(planning, "predict", counted)
    return made


@pytest.mark.parametrize("ranks", [1, 6, 16])
def test_the_fastest_of_all_layouts_are_found(ranks: int, predictions: list[Prediction]) -> None:
    found = plan(WORKLOAD, MIXED, ranks, top=7)
    everything = sorted(
        (predict(WORKLOAD, layout, MIXED) for layout in feasible_layouts(WORKLOAD, MIXED, ranks)),
        key=lambda option: option.seconds_per_step,
    )
    assert found.layouts == len(everything)
    fastest = [option.seconds_per_step for option in found.options[:7]]
    assert fastest == pytest.approx([option.seconds_per_step for option in everything[:7]])
    exact = [option for option in everything if option.layout.exact]
    assert found.best_exact.layout.exact
    assert found.best_exact.seconds_per_step == pytest.approx(exact[0].seconds_per_step)
    assert found.best_exact in found.options
    others = [option for option in exact if option.layout.stages != found.best_exact.layout.stages]
    if ranks == 1:
        assert found.runner_up is None
    else:
        assert found.runner_up.seconds_per_step == pytest.approx(others[0].seconds_per_step)
        assert len(predictions) < len(everything) / 4, "the bounds save no work"
    assert best_exact(WORKLOAD, MIXED, ranks).seconds_per_step == pytest.approx(exact[0].seconds_per_step)


def test_only_computing_counts_with_free_messages() -> None:
    machine = make_machine()
    found = plan(EVEN, machine, 4, top=50)
    one = predict(EVEN, best_exact(EVEN, machine, 1).layout, machine).seconds_per_step
    # Batch 4, 2 x 2, model 4: the work divides evenly, and nothing is faster than a fourth of it.
    grids = {option.layout.stages: option for option in found.options}
    for grid in ((4, 1), (2, 2), (1, 4)):
        assert grids[(grid,)].seconds_per_step == pytest.approx(one / 4)
    assert found.best.seconds_per_step == pytest.approx(one / 4)
    steps = [float(f"{option.seconds_per_step:.9g}") for option in found.options]
    keys = [(step, option.memory_bytes) for step, option in zip(steps, found.options, strict=True)]
    assert keys == sorted(keys), "equally fast layouts are ordered by their memory"
    assert len(set(steps)) < len(steps)


def test_layout_with_least_traffic_is_fastest_with_low_bandwidth() -> None:
    # Batch parallelism sends weights, model parallelism activations: few samples and wide layers, and the reverse.
    slow = make_machine(beta=1e-6)
    wide = Workload(MLP([512, 512, 512]), 100, 4, classification=False)
    long = Workload(MLP([8, 8, 8]), 10_000, 4096, classification=False)
    for workload, stages in ((wide, (1, 4)), (long, (4, 1))):
        sent = {"pipeline": 1, "shared_replicas": False}
        assert plan(workload, slow, 4, wanted=sent).best.layout.stages == (stages,)
        # Ranks of one node that share a replica send neither.
        assert plan(workload, slow, 4, wanted={"pipeline": 1}).best.layout.stages == ((4, 1),)


def test_only_layouts_that_split_the_weights_fit_little_memory() -> None:
    whole = min(largest_memory(WORKLOAD, one).total for one in feasible_layouts(WORKLOAD, MIXED, 1))
    tiny = make_machine(alpha=1.0, memory=whole / 2)
    found = plan(WORKLOAD, tiny, 4, top=100, wanted={"shared_replicas": False})
    for option in found.options:
        assert option.memory_bytes <= whole / 2
        assert len(option.layout.stages) > 1 or option.layout.stages[0][1] > 1  # not by samples alone
    assert 0 < len(found.options) < found.layouts


def test_error_if_no_layout_fits() -> None:
    machine = make_machine(memory=1000.0)
    least = min(largest_memory(WORKLOAD, one).total for one in feasible_layouts(WORKLOAD, machine, 2))
    with pytest.raises(SettingError, match=f"of 2 ranks fits; .* needs {least:,} bytes .*, {least - 1000:,} more"):
        plan(WORKLOAD, machine, 2)
    with pytest.raises(SettingError, match="fits"):
        best_exact(WORKLOAD, machine, 2)
    with pytest.raises(SettingError, match="--top"):
        plan(WORKLOAD, MIXED, 4, top=0)


def test_constraints_may_leave_no_exact_layout() -> None:
    found = plan(WORKLOAD, MIXED, 4, wanted={"pipeline": 4, "method": "vanilla"})
    assert found.best_exact is None
    assert found.runner_up is None
    assert {option.layout.method for option in found.options} == {"vanilla"}


OVERLAP = {"hidden_fraction": 0.6, "compute_slowdown": 1.3, "nonblocking_factor": 1.2}
MANY_LAYERS = Workload(MLP([20, 40, 60, 30, 40, 50, 40, 16, 16]), 700, 37, classification=False)
MACHINES = {
    "arithmetic": make_machine(),
    "messages": make_machine(alpha=1e-4, beta=1e-7, multiply_add=1e-12, call=1e-7),
    "mixed": make_machine(alpha=1e-5, beta=1e-9, call=1e-5, nodes=4, ranks_per_node=4, overlap=OVERLAP),
    "overheads": make_machine(
        alpha=1e-5,
        beta=1e-9,
        call=1e-5,
        nodes=4,
        ranks_per_node=3,
        overlap=OVERLAP,
        between_nodes={
            "segments": [{"alpha_seconds": 5e-5, "beta_seconds_per_byte": 1e-8}],
            "overhead": {"message_seconds": 2e-5, "seconds_per_byte": 6e-9},
        },
    ),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_bounds_hold(machine: Machine) -> None:
    methods = set()
    for layout in islice(feasible_layouts(MANY_LAYERS, machine, 4), None, None, 3):
        bounds = StepBounds(MANY_LAYERS, layout, machine)
        seconds = predict(MANY_LAYERS, layout, machine).seconds_per_step * (1 + 1e-9)
        assert 0 < bounds.rough <= bounds.tight * (1 + 1e-9)
        assert bounds.tight <= seconds, layout
        methods.add(layout.method)
    assert methods == {name for name, method in METHODS.items() if not method.ordered}


def test_the_tight_bound_is_exact_without_waiting_for_messages() -> None:
    machine = make_machine()
    for layout in feasible_layouts(MANY_LAYERS, machine, 2):
        seconds = predict(MANY_LAYERS, layout, machine).seconds_per_step
        # One stage has nothing to wait for; two stages of one microbatch after another, only for each other.
        if len(layout.stages) == 1 or layout.method in ("sequential", "vanilla", "pipedream"):
            assert StepBounds(MANY_LAYERS, layout, machine).tight == pytest.approx(seconds), layout


def advice(layout: Layout, machine: Machine) -> str:
    workload = Workload(MLP([64] * 5), 1000, 128)
    return layout_advice(predict(workload, layout, machine), workload, machine)


def test_a_layout_that_is_clearly_slower_gets_advice() -> None:
    pipeline = replace(Layout.uniform([(1, 1)] * 2, 4), method="gpipe", microbatches=2, merges=True)
    batch = Layout(((2, 1),), (4,), merges=True, shared_replicas=True)
    work, slow_messages, calls = make_machine(), make_machine(alpha=1.0), make_machine(call=1.0, multiply_add=0.0)
    # With two microbatches, 3 / 4 of the time of one rank, against 1 / 2: no more than both errors.
    assert advice(pipeline, work) == ""
    assert re.fullmatch(
        r"predicted slower than 1 rank \(0\.\d+ times as fast\) \(.* 1\.5; .*", advice(pipeline, slow_messages)
    )
    assert advice(batch, work) == advice(batch, calls) == advice(Layout.uniform([(1, 1)], 4), work) == ""
    no_overlap = replace(Layout.uniform([(1, 1)] * 2, 4), method="sequential")  # as fast as one rank
    text = "predicted 1 times as fast as 1 rank; batch 2 would be 2 times (within a factor of 1.5; hybridnn plan)"
    assert advice(no_overlap, work) == text
    quality = {"held_out_of": "passes", "noise": 0.0, "load_average": 0.0, "busy_ranks": 2}
    for error, expected in ((0.1, text), (0.24, text.replace("1.5", "1.6")), (0.5, "")):  # above 0.25: doubtful
        assert advice(no_overlap, make_machine(quality={"held_out_error": error, **quality})) == expected
    assert advice(no_overlap, make_machine(memory=1.0)) == ""  # nothing fits
    assert advice(no_overlap, make_machine(multiply_add=1e-11)) == ""  # not beyond the errors of short steps
    assert "(within a factor of 2.3; " in advice(pipeline, make_machine(multiply_add=1e-11, alpha=1.0))


def test_advice_names_a_pipeline_where_it_is_faster_than_all_others() -> None:
    """Between nodes, the sum of the gradients of wide layers takes longer than the activations of few samples."""
    workload, machine = Workload(MLP([512] * 9), 1000, 16), make_machine(beta=3e-8, nodes=2, ranks_per_node=1)
    batch = predict(workload, Layout(((2, 1),), (8,), merges=True), machine)
    text = layout_advice(batch, workload, machine)
    best = plan(workload, machine, 2).best_exact
    assert len(best.layout.stages) == 2
    assert f"; {best.layout.describe()} would be 1." in text


QUALITY = {"held_out_of": "passes", "noise": 0.0, "load_average": 0.0, "busy_ranks": 2}


def test_the_best_layouts_scale_ideally_with_free_messages() -> None:
    """Work that divides evenly: the speed-up is the number of ranks, and its errors are those of two predictions."""
    alone = 8 * 64 * 64 * 64 * 3 - 64 * 64 * 64  # multiply-adds; the first layer has no input gradient
    for quality, long, short in ((0.1, 1.2 / 0.8, 1.4 / 0.6), (0.24, 1.24 / 0.76, 1.4 / 0.6), (None, 1.5, 1.4 / 0.6)):
        stated = {} if quality is None else {"quality": {"held_out_error": quality, **QUALITY}}
        curve = best_curve(EVEN, make_machine(**stated), [1, 2, 4, 16, 64])
        assert curve.kind == "best"
        assert [point.ranks for point in curve.points] == [1, 2, 4, 16, 64]
        for point in curve.points:
            seconds = alone * 1e-9 / point.ranks
            assert point.seconds_per_step == pytest.approx(seconds)
            assert point.speed_up == pytest.approx(point.ranks)
            assert point.efficiency == pytest.approx(1)
            assert point.batch_size == 64
            factor = 1 if point.ranks == 1 else long if seconds >= 5e-4 else short
            assert point.low == pytest.approx(point.ranks / factor)
            assert point.high == pytest.approx(point.ranks * factor)


def test_a_curve_need_not_begin_with_one_rank_and_a_doubtful_file_has_no_errors() -> None:
    doubtful = make_machine(quality={"held_out_error": 53.0, **QUALITY})
    (point,) = best_curve(EVEN, doubtful, [8]).points
    assert (point.speed_up, point.low, point.high) == (pytest.approx(8), None, None)
    with pytest.raises(SettingError, match="is the largest number up to 1000000007"):
        best_curve(EVEN, doubtful, [8, 1000000007])


def test_layouts_faster_than_those_of_a_curve_are_found() -> None:
    """A wide network with few samples, on 64 nodes of 16 ranks: replicas stop at 4 times the speed, splits do not."""
    machine = read_machine("cluster-1024").model_copy(update={"nodes": 64, "ranks_per_node": 16})
    workload = Workload(MLP([784, 1024, 1024, 1024, 10]), 60_000, 256)
    replicas = scaling_curve(workload, Layout(((64, 1),), (4,), merges=True, shared_replicas=True), machine, "strong")
    found = {point.ranks: point for point in faster_points(replicas, workload, machine)}
    for point in replicas.points[1:]:
        exact = (it for it in feasible_layouts(workload, machine, point.ranks, {"exact": True}) if it.exact)
        fastest = min((predict(workload, it, machine) for it in exact), key=lambda it: it.seconds_per_step)
        assert (point.ranks in found) == (fastest.seconds_per_step * 1.5 < point.seconds_per_step)
        if point.ranks in found:
            assert found[point.ranks].seconds_per_step == pytest.approx(fastest.seconds_per_step)
            assert found[point.ranks].layout.describe() == fastest.layout.describe()
    assert sorted(found) == [4, 8, 16, 32, 64]
    assert found[64].layout.describe() == "batch 2 x model 32 (alternating)"
    assert found[64].seconds_per_step == pytest.approx(2.142e-3, rel=1e-3)
    own = scaling_curve(workload, found[64].layout, machine, "strong")
    assert all(point.ranks < 64 for point in faster_points(own, workload, machine))
    worse = machine.model_copy(update={"quality": Quality.model_validate({"held_out_error": 53.0, **QUALITY})})
    assert faster_points(replicas, workload, worse) == ()
    little = machine.model_copy(update={"memory_bytes_per_rank": 1.0})
    assert faster_points(replicas, workload, little) == ()


def prediction(
    batch: int, computing: float, communication: float = 0.0, bubble: float = 0.0, overhead: float = 0.0, model: int = 1
) -> Prediction:
    """A step of so many milliseconds of each part."""
    breakdown = TimeBreakdown(computing / 1e3, communication / 1e3, bubble / 1e3, overhead / 1e3)
    return Prediction(
        layout=Layout(((batch, model),), (3,)),
        seconds_per_step=(computing + communication + bubble + overhead) / 1e3,
        seconds_per_epoch=1.0,
        breakdown=breakdown,
        bytes_per_step=1,
        memory_bytes=1,
        instructions={},
    )


def test_reason_sentences() -> None:
    best, other = prediction(4, 2.0, 1.0), prediction(2, 1.8, 2.0, model=2)
    wins = "batch 4 wins over batch 2 x model 2 (columns) by 800 µs a step"
    assert reason_sentence(best, other) == f"{wins}: 1 ms less communication, 200 µs more computing."
    assert "only process grid" in reason_sentence(best, None)
    assert "equally fast" in reason_sentence(best, prediction(2, 2.0, 1.0, model=2))


MACHINE = make_machine()
DEEP = Workload(MLP([8, 16, 16, 16, 16, 4]), 1000, 32)


def layouts(workload: Workload, ranks: int, **wanted: object) -> list[Layout]:
    return list(feasible_layouts(workload, MACHINE, ranks, wanted))


def test_one_layer_has_no_pipelines() -> None:
    found = layouts(Workload(MLP([5, 4]), 100, 8), 8, shared_replicas=False)
    # 8 x 1, 4 x 2 and 2 x 4; 1 x 8 would leave ranks without outputs. One layer has nothing to alternate with.
    assert [(one.stages, one.model_split, one.overlap) for one in found] == [
        (((batch, model),), "columns", overlap)
        for batch, model in ((8, 1), (4, 2), (2, 4))
        for overlap in (True, False)
    ]
    assert all((one.method, one.microbatches, one.layers) == ("sequential", 1, (1,)) for one in found)


def test_grids_are_all_factorizations_of_the_ranks() -> None:
    for ranks in (1, 12, 60):
        expected = {
            ((batch, model),) * pipeline
            for pipeline, batch, model in product(range(1, 6), range(1, 33), range(1, 17))
            if pipeline * batch * model == ranks
        }
        assert {one.stages for one in layouts(DEEP, ranks)} == expected


def test_layouts_are_distinct_and_their_schedules_valid() -> None:
    found = layouts(DEEP, 16)
    assert len(set(found)) == len(found)
    for layout in found:
        assert layout.ranks == 16
        assert sum(layout.layers) == 5
        batch, _ = layout.stages[0]
        # Every rank of every stage has a sample of every microbatch.
        assert DEEP.batch_size // layout.microbatches >= batch
        if layout.stages[0] == (16 // len(layout.stages), 1):  # the widths do not matter to the schedule
            lint(layout.schedule(1 if layout.exact else 8))


def test_methods_microbatches_and_chunks() -> None:
    found = [one for one in layouts(DEEP, 2) if len(one.stages) == 2]
    by_method = {name: sorted(one.microbatches for one in found if one.method == name) for name in METHODS}
    cut = [2, 4, 8, 16]  # up to 8 for each of 2 stages
    for name, method in METHODS.items():
        allowed = [count for count in cut if method.can_cut(count, 2)] if method.cuts_minibatches else [1]
        assert by_method[name] == ([] if method.ordered else allowed), name
    assert [one.microbatches for one in layouts(DEEP, 2, method="searched")] == cut
    assert {one.chunks for one in found if one.method == "interleaved"} == {2}
    # Three stages: powers of two, and those times three; interleaved schedules take only multiples of the stages.
    three = [one for one in layouts(replace(DEEP, model=MLP([8] + [16] * 8)), 3) if len(one.stages) == 3]
    assert sorted(one.microbatches for one in three if one.method == "gpipe") == [2, 3, 4, 6, 8, 12, 16, 24]
    assert sorted(one.microbatches for one in three if one.method == "interleaved") == [3, 6, 12, 24]
    # Two chunks for each of 3 stages need 6 layers.
    assert not [one for one in layouts(DEEP, 3) if one.method == "interleaved"]


@pytest.mark.parametrize(("machine", "stages"), product(MACHINES.values(), (4, 8)))
def test_a_searched_order_is_not_slower_than_a_method_of_one_chunk(machine: Machine, stages: int) -> None:
    wanted = {"pipeline": stages, "chunks": 1, "microbatches": 2 * stages, "exact": True}
    methods = [
        name for name, it in METHODS.items() if 1 in it.chunks and it.drains and it.cuts_minibatches and not it.ordered
    ]
    ways = (best_exact(MANY_LAYERS, machine, stages, wanted | {"method": name}) for name in methods)
    best = min(ways, key=lambda it: it.seconds_per_step)
    found = with_searched(best, MANY_LAYERS, machine, wanted)
    assert found == best or (found.seconds_per_step < best.seconds_per_step and found.layout.order)
    layout = searched(best.layout, lambda it: StageCosts(MANY_LAYERS, it, machine).stage_times())
    assert predict(MANY_LAYERS, layout, machine).seconds_per_step <= best.seconds_per_step * (1 + 1e-9)
    assert plan(MANY_LAYERS, machine, stages, wanted=wanted).best.seconds_per_step <= found.seconds_per_step
    small = machine.model_copy(update={"memory_bytes_per_rank": best.memory_bytes})
    assert with_searched(best, MANY_LAYERS, small, wanted).memory_bytes <= best.memory_bytes


def test_sgd_without_momentum_excludes_methods() -> None:
    assert "spectrain" in {one.method for one in layouts(DEEP, 4)}
    assert "spectrain" not in {one.method for one in layouts(replace(DEEP, optimizer=SGD(momentum=0.0)), 4)}


def test_overlap_varies_only_with_communication_in_the_backward_pass() -> None:
    for layout in layouts(DEEP, 4, shared_replicas=False):
        assert layout.overlap or layout.stages[0] != (1, 1)
    assert {one.overlap for one in layouts(DEEP, 4, shared_replicas=False) if one.stages == ((4, 1),)} == {True, False}
    # Gradients that are shared do not travel beside computing; with model ranks something else does.
    for layout in layouts(DEEP, 4):
        assert layout.overlap or layout.stages[0][1] > 1
    assert {one.overlap for one in layouts(DEEP, 4) if one.stages == ((2, 2),)} == {True, False}
    assert {one.overlap for one in layouts(DEEP, 4, batch=4, overlap=False)} == {False}, "a wish that costs nothing"


def test_batch_ranks_of_a_node_share_a_replica_by_default() -> None:
    cluster = make_machine(nodes=2, ranks_per_node=4)
    for layout in feasible_layouts(DEEP, cluster, 8):
        batch, model = layout.stages[0]
        for stage in range(len(layout.stages)):
            ((sharers, groups),) = replica_groups(layout, stage).items()
            assert (sum(sharers), groups) == (batch, model)
            # Model groups lie inside a node, so that half of the ranks of a stage, or all, are on one.
            assert max(sharers) <= max(1, 4 // model)
    whole = [replica_groups(layout, 0) for layout in feasible_layouts(DEEP, cluster, 8) if layout.stages == ((8, 1),)]
    assert whole == [{(4, 4): 1}] * len(whole)
    assert not any(layout.shared_replicas for layout in feasible_layouts(DEEP, cluster, 8, {"shared_replicas": False}))


def test_constraints_exclude_exactly_the_other_layouts() -> None:
    everything = layouts(DEEP, 8, shared_replicas=False)
    for wanted in (
        {"pipeline": 2, "model": 2},
        {"batch": 4},
        {"model_split": "alternating"},
        {"overlap": False},
        {"pipeline": 4, "method": "1f1b", "microbatches": 8},
    ):
        expected = [
            one
            for one in everything
            if wanted.get("pipeline", len(one.stages)) == len(one.stages)
            and wanted.get("batch", one.stages[0][0]) == one.stages[0][0]
            and wanted.get("model", one.stages[0][1]) == one.stages[0][1]
            and wanted.get("model_split", one.model_split) == one.model_split
            and wanted.get("overlap", one.overlap) == one.overlap
            and wanted.get("method", one.method) == one.method
            and wanted.get("microbatches", one.microbatches) == one.microbatches
        ]
        assert expected
        assert layouts(DEEP, 8, shared_replicas=False, **wanted) == expected
    # A number of microbatches that would not be tried by itself.
    assert {one.microbatches for one in layouts(DEEP, 2, pipeline=2, method="gpipe", microbatches=5)} == {5}
    with pytest.raises(SettingError, match="pipeline = 2, method = pipedream, microbatches = 2"):
        layouts(DEEP, 2, pipeline=2, method="pipedream", microbatches=2)


def test_error_with_more_ranks_than_the_model_can_use() -> None:
    small = Workload(MLP([5, 4, 3]), 100, 7)
    # 2 stages of 7 batch and 4 model ranks
    assert most_ranks(small, 10**9) == 56
    with pytest.raises(SettingError, match=r"ranks = 64: 56 is the largest number up to 64 .* 2 layers, 7 samples"):
        layouts(small, 64)
    # A prime above all of 7 samples, 4 outputs and 2 layers is no product of what there is; 28 is 7 x 4.
    assert most_ranks(small, 29) == 28
    with pytest.raises(SettingError, match="28 is the largest number up to 29"):
        layouts(small, 29)
    with pytest.raises(SettingError, match="ranks = 0"):
        layouts(small, 0)


def test_layers_are_balanced_by_their_times() -> None:
    # Multiply-adds of the passes per sample: 2 x 800, as the first has no input gradient, then 3 x 10000, 10000, 100.
    workload = Workload(MLP([8, 100, 100, 100, 1]), 1000, 32)
    assert balanced_layers(workload, MACHINE, [(1, 1)] * 2) == (2, 2)
    assert balanced_layers(workload, MACHINE, [(1, 1)] * 3) == (1, 1, 2)
    # Where a call is all that counts: 2, 3, 3 and 3 of them.
    calls = make_machine(multiply_add=0.0, call=1e-6)
    assert balanced_layers(workload, calls, [(1, 1)] * 2) == (2, 2)
    narrow = Workload(MLP([8, 1000, 2, 2, 2, 2]), 1000, 32)
    # 16000, then 6000 and 3 x 4 three times: the machine's arithmetic puts all the rest into the second stage.
    assert balanced_layers(narrow, MACHINE, [(1, 1)] * 2) == (1, 4)
    assert balanced_layers(narrow, calls, [(1, 1)] * 2) == (3, 2)
    # A boundary of 1000 numbers costs more than all computing.
    slow = make_machine(multiply_add=1e-12, beta=1.0)
    assert balanced_layers(narrow, slow, [(1, 1)] * 2)[0] != 1
