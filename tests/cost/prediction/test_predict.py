"""Predictions on synthetic machines, computed by hand."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, log2
from typing import Any

import pytest

from hybridnn import MLP
from hybridnn.cost.machine import ElementCost, Machine, PassCost
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.compiled_schedule import Channel
from hybridnn.pipeline.schedules.instructions import Forward, InputGradient
from hybridnn.pipeline.schedules.methods import METHODS, Method
from reference.machines import make_machine

NANO = 1e-9
SIZES = [6, 12, 12, 12, 12, 4]
WEIGHTS = [a * b for a, b in pairwise(SIZES)]


def workload(batch_size: int = 24, sizes: list[int] | None = None) -> Workload:
    return Workload(MLP(sizes or SIZES, "relu"), 10 * batch_size, batch_size, classification=False)


def layout(*stages: tuple[int, int], layers: tuple[int, ...], **others: object) -> Layout:
    return Layout(stages, layers, overlap=False, **others)


def test_an_epoch_includes_its_last_minibatch() -> None:
    short = Workload(MLP(SIZES, "relu"), 250, 24, classification=False)
    done = predict(short, layout((1, 1), layers=(5,)), make_machine())
    assert done.seconds_per_epoch == pytest.approx(11 * done.seconds_per_step)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_batch_parallel_is_the_largest_share_and_one_all_reduce(ranks: int) -> None:
    alpha, beta = 1e-3, 1e-7
    machine = make_machine(alpha=alpha, beta=beta)
    done = predict(workload(25), layout((ranks, 1), layers=(5,)), machine)
    products = ceil(25 / ranks) * (3 * sum(WEIGHTS) - WEIGHTS[0]) * NANO
    nbytes = gradient_bytes(SIZES[1:])
    # The cheapest that is known for so few and long messages is no cheaper than the lower bounds of Chan et al. 2007.
    least = ceil(log2(ranks)) * alpha + 2 * (ranks - 1) / ranks * nbytes * beta
    ring = 2 * (ranks - 1) * (alpha + ceil(nbytes / ranks) * beta)
    assert least <= done.breakdown.communication <= ring * (1 + 1e-12)
    assert done.breakdown.computing == pytest.approx(products)
    assert done.seconds_per_step == pytest.approx(products + done.breakdown.communication)


def gradient_bytes(rows: list[int]) -> int:
    """Weights and biases of so many rows of each layer, every array from a multiple of 64 bytes on, and the loss."""
    arrays = [numbers for inputs, own in zip(SIZES, rows, strict=False) for numbers in (inputs * own, own)]
    return 4 * (sum(-(-numbers // 16) * 16 for numbers in arrays) + 1)


def elements_only(**others: Any) -> Machine:
    """A second for every number added, a hundred for one updated, 1e6 for a message; nothing else takes time."""
    machine = make_machine(alpha=1e6, multiply_add=0.0, **others)
    costs = {"packing": ElementCost(number_seconds=1.0), "updates": {"sgd": ElementCost(number_seconds=100.0)}}
    return machine.model_copy(update={"compute": tuple(entry.model_copy(update=costs) for entry in machine.compute)})


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_shared_replicas_reduce_and_update_slices_with_two_collectives(ranks: int) -> None:
    done = predict(workload(), layout((ranks, 1), layers=(5,), shared_replicas=True), elements_only())
    lines = (gradient_bytes(SIZES[1:]) - 4) // 64
    own = 64 * ceil(lines / 4 / ranks)
    assert done.breakdown.computing == pytest.approx(own * (ranks - 1) + own * 100)
    # The loss and the barrier: lg P messages each.
    assert done.breakdown.communication == pytest.approx(2 * log2(ranks) * 1e6)
    assert done.bytes_per_step == ranks * 2 * (4 * (ranks - 1) // ranks), "the loss"
    alone = predict(workload(), layout((ranks, 1), layers=(5,)), elements_only())
    assert alone.breakdown.computing == pytest.approx(16 * lines * 100)
    assert done.memory_bytes < alone.memory_bytes


def test_a_rank_alone_on_its_node_updates_all_slices() -> None:
    cluster = elements_only(nodes=2, ranks_per_node=3)
    done = predict(workload(), layout((4, 1), layers=(5,), shared_replicas=True, node_ranks=3), cluster)
    own = 64 * ceil((gradient_bytes(SIZES[1:]) - 4) // 256 / 3)
    assert done.breakdown.computing == pytest.approx(2 * own + 3 * own * 100)
    # Two messages for the loss of four ranks, two for a barrier of three, one for each slice between two nodes.
    assert done.breakdown.communication == pytest.approx((2 + 2 + 3) * 1e6)


@pytest.mark.parametrize(("split", "collectives"), [("columns", 5 + 4), ("alternating", 5)])
def test_model_parallel_counts_its_collectives(split: str, collectives: int) -> None:
    # Two ranks and no bytes to pay for: each collective is one message of alpha at the least, an all-reduce one too
    # (recursive doubling). Columns: 5 gathers and, but for the first layer, 4 sums. Alternating, with 5 layers: pairs
    # (0, 1) and (2, 3) sum once forward each; the last layer gathers; layers 2 and 4 sum once backward, layer 0 not.
    machine = make_machine(alpha=1.0, multiply_add=0.0)
    done = predict(workload(), layout((1, 2), layers=(5,), model_split=split), machine)
    assert done.seconds_per_step == pytest.approx(collectives)


def test_a_model_rank_computes_its_rows() -> None:
    done = predict(workload(), layout((1, 4), layers=(5,)), make_machine())
    # Rank 0 has 3 of 12 rows of the hidden layers and 1 of 4 outputs.
    own = [6 * 3, 12 * 3, 12 * 3, 12 * 3, 12 * 1]
    assert done.seconds_per_step == pytest.approx(24 * (3 * sum(own) - own[0]) * NANO)


def equal_stages(stages: int) -> Workload:
    """Layers that all take as long, but for the first, whose input gradient nobody wants; and so it has none to pay."""
    return workload(96, [16] * (2 * stages + 1))


@pytest.mark.parametrize(("method", "stages", "microbatches"), [("gpipe", 2, 4), ("1f1b", 4, 8), ("1f1b", 3, 16)])
def test_exact_pipelines_have_the_bubble_of_the_formula(method: str, stages: int, microbatches: int) -> None:
    """(m + K - 1)(t_F + t_B), where all stages are alike."""
    work, machine, free = equal_stages(stages), make_machine(), PassCost(multiply_add_seconds=0.0)
    machine = machine.model_copy(
        update={"compute": tuple(entry.model_copy(update={"input_gradient": free}) for entry in machine.compute)}
    )
    done = predict(
        work, layout(*[(1, 1)] * stages, layers=(2,) * stages, method=method, microbatches=microbatches), machine
    )
    of_microbatch = 96 // microbatches * 2 * 16 * 16 * 2 * NANO  # two layers, forward and weight gradient
    assert done.seconds_per_step == pytest.approx((microbatches + stages - 1) * of_microbatch)
    assert done.breakdown.bubble == pytest.approx((stages - 1) * of_microbatch)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_pipedream_adds_the_slowest_stage_per_minibatch(stages: int) -> None:
    """Kang 2019, Table 1: (T_F + T_B) / K where stages are equal; in general what the slowest stage takes."""
    work = equal_stages(stages)
    done = predict(work, layout(*[(1, 1)] * stages, layers=(2,) * stages, method="pipedream"), make_machine())
    slowest = 96 * 2 * 16 * 16 * 3 * NANO
    assert done.seconds_per_step == pytest.approx(slowest)
    # Filling takes the forward passes of the stages before, and emptying their backward passes.
    assert done.seconds_per_epoch > 10 * done.seconds_per_step


@pytest.mark.parametrize("method", ["sequential", "ddg", "fr"])
def test_lockstep_methods_follow_table_1(method: str) -> None:
    """Kang 2019, Table 1: T_F + T_B, T_F + T_B / K, and with recomputation T_F + (T_F + T_B) / K."""
    stages = 4
    work = equal_stages(stages)
    equal = layout(*[(1, 1)] * stages, layers=(2,) * stages, method=method)
    done = predict(work, replace(equal, barriers=method != "sequential"), make_machine())
    forward = 96 * 2 * 16 * 16 * NANO
    backward = 2 * forward
    first_backward = backward - forward / 2  # the first layer has no input gradient
    expected = {
        "sequential": stages * forward + (stages - 1) * backward + first_backward,
        "ddg": stages * forward + backward,
        "fr": stages * forward + forward + backward,
    }
    assert done.seconds_per_step == pytest.approx(expected[method])


def test_overlap_hides_its_fraction_and_slows_computing() -> None:
    overlap = {"hidden_fraction": 0.5, "compute_slowdown": 1.2, "nonblocking_factor": 1.5}
    machine = make_machine(beta=1e-9, overlap=overlap)
    apart = predict(workload(), layout((2, 1), layers=(5,)), machine)
    beside = predict(workload(), Layout(((2, 1),), (5,), overlap=True), machine)
    alone = 1.5 * apart.breakdown.communication
    assert alone < apart.breakdown.computing / 2, "the backward pass is long enough to hide behind"
    assert beside.breakdown.communication_hidden == pytest.approx(0.5 * alone)
    assert beside.breakdown.communication == pytest.approx(0.5 * alone)
    assert beside.breakdown.computing == pytest.approx(apart.breakdown.computing + 0.2 * 0.5 * alone)


@pytest.mark.parametrize(("overhead", "microbatches"), [(0.5, 1), (2.0, 3), (0.5, 8)])
def test_overheads_of_messages_are_counted_on_both_ranks(overhead: float, microbatches: int) -> None:
    """LogGP without computing: a message of 5 s takes o from both ranks, which send one after the other."""
    message, work = 5.0, equal_stages(2)
    nbytes = 4 * 16 * work.batch_size / microbatches
    far = {
        "segments": [{"alpha_seconds": message, "beta_seconds_per_byte": 0.0}],
        "overhead": {"message_seconds": overhead / 4, "seconds_per_byte": 0.75 * overhead / nbytes},
    }
    overlap = {"hidden_fraction": 0.25}
    machine = make_machine(multiply_add=0.0, nodes=2, ranks_per_node=1, between_nodes=far, overlap=overlap)
    made = layout((1, 1), (1, 1), layers=(2, 2), method="gpipe", microbatches=microbatches)
    found = predict(work, made, machine)
    one_way = message + (microbatches - 1) * overhead
    assert found.seconds_per_step == pytest.approx(2 * one_way + message), "there and back, and the loss to all"
    assert found.breakdown.communication == pytest.approx(message + 2 * microbatches * overhead)
    # A message takes as long as before: what it does not take from its ranks is in transit.
    transit = StageCosts(work, made, machine).message((Channel(0, 1, False, 0), 0, 0)).transit
    assert transit == pytest.approx(message - 2 * overhead)


def test_stages_differ_where_only_some_neighbours_are_on_another_node() -> None:
    """Four stages on two nodes: one of the three boundaries is between nodes, and has all overheads."""
    far = {"segments": [{"alpha_seconds": 0.0, "beta_seconds_per_byte": 0.0}], "overhead": {"message_seconds": 1.0}}
    machine = make_machine(multiply_add=0.0, nodes=2, ranks_per_node=2, between_nodes=far)
    made = layout(*[(1, 1)] * 4, layers=(2,) * 4, method="gpipe", microbatches=3)
    costs = StageCosts(equal_stages(4), made, machine)
    passes = Forward(0, 1), InputGradient(0, 1)
    overheads = [[costs.breakdown(stage, item).communication for item in passes] for stage in range(4)]
    assert overheads == [[0, 0], [1, 1], [1, 1], [0, 0]]


def test_joined_microbatches_take_time_per_row() -> None:
    """One product over all microbatches: the rows of inputs and gradients of every layer but the network's input."""
    machine = make_machine(multiply_add=0.0)
    entries = tuple(entry.model_copy(update={"row_seconds": 1.0}) for entry in machine.compute)
    made = replace(layout((1, 1), layers=(5,), method="gpipe", microbatches=3), merges=True)
    found = predict(workload(), made, machine.model_copy(update={"compute": entries}))
    assert found.seconds_per_step == pytest.approx(3 * (sum(SIZES[:-1]) + sum(SIZES[1:]) - SIZES[0]))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_parts_add_up_to_the_step(method: Method) -> None:
    machine = make_machine(alpha=1e-6, beta=1e-9, call=1e-6)
    chunks, microbatches = method.chunks[0], 4 if method.cuts_minibatches else 1
    for stage in ((2, 1), (1, 2), (2, 2)):
        options = {"layers": (8 // (2 * chunks),) * (2 * chunks), "microbatches": microbatches, "chunks": chunks}
        done = predict(workload(96, [8] * 9), layout(stage, stage, method=method.name, **options), machine)
        parts = done.breakdown
        total = parts.computing + parts.communication + parts.bubble + parts.overhead
        assert total == pytest.approx(done.seconds_per_step)


def test_groups_across_nodes_share_the_bandwidth_of_a_node() -> None:
    near = {"segments": [{"alpha_seconds": 0.0, "beta_seconds_per_byte": 1e-9}]}
    far = {"segments": [{"alpha_seconds": 0.0, "beta_seconds_per_byte": 1e-8}]}
    machine = make_machine(multiply_add=0.0, nodes=2, ranks_per_node=2, inside_node=near, between_nodes=far)

    def communication(*stages: tuple[int, int]) -> float:
        return predict(workload(), layout(*stages, layers=(5,)), machine).breakdown.communication

    inside = communication((2, 1))
    assert inside == pytest.approx(gradient_bytes(SIZES[1:]) * 1e-9, rel=0.01)  # 2 (p - 1) / p = 1
    # Two batch groups of two ranks, one in each node: both cross at once, each with half of the weights.
    halves = gradient_bytes([rows // 2 for rows in SIZES[1:]])
    gathers = 4 * 12 * (sum(SIZES[1:]) / 2 + sum(SIZES[1:-1])) * 1e-9
    assert communication((2, 2)) == pytest.approx(2 * halves * 1e-8 + gathers, rel=0.01)


def test_the_two_ways_to_scatter_a_minibatch() -> None:
    """Laugier et al. 2018, section 7: from rank 0 to all, or to one rank per model group, which broadcasts."""
    machine = make_machine(beta=1e-6, multiply_add=0.0)
    sizes = [100, 4]

    def communication(way: str) -> float:
        work = Workload(MLP(sizes, "relu"), 240, 24, classification=False, distribution=way)
        return predict(work, layout((2, 4), layers=(1,)), machine).breakdown.communication

    local, direct, broadcast = map(communication, ("local", "scatter", "scatter-broadcast"))
    minibatch = 4 * 24 * (100 + 4)
    # Everything but its own part leaves rank 0: 7 of 8 parts of the minibatch times 4 model ranks, or 1 of 2 parts,
    # which then go through each model group (scatter and all-gather: twice 3 of 4 parts).
    assert direct - local == pytest.approx(7 / 8 * 4 * minibatch * 1e-6)
    assert broadcast - local == pytest.approx((1 / 2 + 2 * 3 / 4 * 1 / 2) * minibatch * 1e-6)
