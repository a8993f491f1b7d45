"""Groups of a layout on nodes, against an enumeration of the trainer's own placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil, lcm, prod

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.cost.collectives import crossings_of, pairs, rounds_of
from hybridnn.cost.machine import Machine
from hybridnn.cost.planning.plan import plan
from hybridnn.cost.prediction.groups import Groups
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.grid import place_ranks
from hybridnn.pipeline.execution.point_to_point import StagePosition, pieces_sent
from hybridnn.pipeline.layout import Layout
from reference.machines import make_machine
from reference.message_counts import Algorithm, algorithms

INSIDE, BETWEEN = 1e-6, 1e-3
Stages = tuple[tuple[int, int], ...]
Grid = list[list[list[int]]]
"""Nodes of the ranks of every stage, by batch rank and model rank."""


def link(alpha: float, beta: float = 0.0) -> dict[str, object]:
    return {"segments": [{"alpha_seconds": alpha, "beta_seconds_per_byte": beta}]}


def slow_between(nodes: int, ranks_per_node: int) -> Machine:
    """Messages take a microsecond inside a node and a millisecond between nodes, and nothing else takes time."""
    return make_machine(
        multiply_add=0.0,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        inside_node=link(INSIDE),
        between_nodes=link(BETWEEN),
    )


def placed(stages: Stages, ranks_per_node: int) -> Grid:
    """Where the trainer places every rank: position by position, fastest along model, then batch, then pipeline."""
    nodes = [rank // ranks_per_node for rank in range(sum(map(prod, stages)))]
    order = iter(place_ranks(nodes, max(model for _, model in stages)))
    return [[[nodes[next(order)] for _ in range(model)] for _ in range(batch)] for batch, model in stages]


def drawn_layouts(seed: int, count: int) -> Iterable[tuple[Stages, int]]:
    generator = np.random.default_rng(seed)
    for _ in range(count):
        stages = int(generator.integers(1, 4))
        widths = tuple((int(generator.integers(1, 7)), int(generator.integers(1, 6))) for _ in range(stages))
        if generator.random() < 0.5:
            widths = (widths[0],) * stages
        yield widths, int(generator.integers(1, 1 + sum(map(prod, widths))))


def busiest(messages: Iterable[tuple[int, int, float]]) -> float:
    """Messages that leave one node, or come to it, on the node with most of them."""
    leaving: Counter[int] = Counter()
    coming: Counter[int] = Counter()
    for sender, receiver, part in messages:
        if sender != receiver:
            leaving[sender] += part
            coming[receiver] += part
    return max([0.0, *leaving.values(), *coming.values()])


def test_groups_of_random_layouts_span_the_nodes_of_their_ranks() -> None:
    spanning = 0
    for stages, ranks_per_node in drawn_layouts(0, 200):
        ranks = sum(map(prod, stages))
        machine = slow_between(ceil(ranks / ranks_per_node), ranks_per_node)
        layers = (1,) * len(stages)
        shared = Layout(
            stages,
            layers,
            shared_replicas=True,
            wire_dtype="float16",
            node_ranks=ranks_per_node,
        )
        groups, grid = Groups(shared, machine), placed(stages, ranks_per_node)
        for stage, (batch, model) in enumerate(stages):
            rows, columns = grid[stage], list(zip(*grid[stage], strict=True))
            spans = any(len(set(row)) > 1 for row in rows)
            spanning += spans and model <= ranks_per_node
            assert (groups.model("barrier", 0, stage).seconds > 900 * INSIDE) == spans, (stages, ranks_per_node)
            assert (groups.batch("barrier", 0, stage).seconds > 900 * INSIDE) == any(
                len(set(one)) > 1 for one in columns
            )
            ways = Counter(tuple(times for _, times in sorted(Counter(one).items())) for one in columns)
            assert shared.replica_groups(stage) == ways
            assert (shared.rounding(stage) is not None) == any(len(set(one)) > 1 for one in columns)
            assert shared.has_own_replicas(stage) == any(max(way) == 1 for way in ways)
            assert sum(shared.replica_groups(stage).values()) == model
            assert sum(map(len, rows)) == batch * model
    assert spanning > 20, "few of these model groups would fit a node and are not on one"


def test_messages_between_stages_are_those_that_the_trainer_sends() -> None:
    crossing = 0
    for stages, ranks_per_node in drawn_layouts(1, 200):
        ranks = sum(map(prod, stages))
        machine = slow_between(ceil(ranks / ranks_per_node), ranks_per_node)
        groups, grid = Groups(Layout(stages, (1,) * len(stages)), machine), placed(stages, ranks_per_node)
        samples = lcm(*(batch for batch, _ in stages))
        for sender in range(len(stages)):
            for receiver in {(sender + 1) % len(stages), (sender - 1) % len(stages)} - {sender}:
                largest = samples // min(stages[sender][0], stages[receiver][0])
                messages = [
                    (grid[sender][i][j], grid[receiver][peer.batch_rank][peer.model_rank], (stop - start) / largest)
                    for i in range(stages[sender][0])
                    for j in range(stages[sender][1])
                    for peer, start, stop in pieces_sent(stages, StagePosition(sender, i, j), receiver, samples)
                ]
                flows = groups.flows(sender, receiver)
                assert flows == pytest.approx(busiest(messages)), (stages, ranks_per_node)
                assert (groups.message(0, sender, receiver) == BETWEEN) == (flows > 0)
                crossing += 0 < flows < len(messages)
    assert crossing > 50


@pytest.mark.parametrize("ranks", range(2, 18))
def test_concurrent_messages_of_a_node_are_counted_round_by_round(ranks: int) -> None:
    """All ranks of a node send across its border at once where recursive doubling or Bruck's rounds go that far."""
    generator = np.random.default_rng(ranks)
    reference = algorithms(ranks)
    for trial in range(6):
        groups = int(generator.integers(1, 4))
        nodes = generator.integers(0, 4, (groups, ranks)) if trial else np.arange(ranks)[None] // 4
        crossings, nbytes = crossings_of(nodes), 5 * ranks + 3
        for (operation, name), (way, *_) in reference.items():
            if name == "linear":  # counted as if each of its messages left the node
                continue
            found = Counter[tuple[float, float]]()
            for one in rounds_of(operation, name, nbytes, ranks):
                both = name == "rabenseifner" and one.pattern is pairs
                times = 2 if both else int(one.counts.messages)
                flows = crossings.flows(one.pattern, one.distance)
                found[flows, one.counts.nbytes / one.counts.messages] += times
            assert found == _crossings_one_by_one(way, nodes.tolist(), nbytes), (operation, name)


@pytest.mark.parametrize("ranks", range(2, 10))
def test_messages_of_an_all_to_all_leave_a_node_in_the_mean_over_its_rounds(ranks: int) -> None:
    generator = np.random.default_rng(ranks)
    nodes, numbers = generator.integers(0, 4, (3, ranks)), generator.integers(1, 4, 3)
    (rounds,) = rounds_of("alltoall", "linear", 5 * ranks + 3, ranks)
    messages = [
        (int(group[sender]), int(group[receiver]), float(number))
        for group, number in zip(nodes, numbers, strict=True)
        for sender in range(ranks)
        for receiver in range(ranks)
    ]
    flows = crossings_of(nodes, numbers).flows(rounds.pattern, rounds.distance)
    assert flows == pytest.approx(busiest(messages) / (ranks - 1))


def _crossings_one_by_one(way: Algorithm, nodes: list[list[int]], nbytes: int) -> Counter[tuple[float, float]]:
    carried = 0 if way.operation == "barrier" else nbytes
    sizes = [len(range(block, carried, way.blocks)) for block in range(way.blocks)]
    found = Counter[tuple[float, float]]()
    for messages in way.rounds:
        crossing = busiest((group[one.sender], group[one.receiver], 1.0) for group in nodes for one in messages)
        found[crossing, max(sum(sizes[block] for block in one.blocks) for one in messages)] += 1
    return found


def test_recursive_doubling_between_full_nodes_shares_their_bandwidth() -> None:
    """Two nodes of four ranks: the four of a node exchange with the other four in the last of three rounds."""
    beta, n = 1e-9, 8000
    machine = make_machine(nodes=2, ranks_per_node=4, inside_node=link(0.0), between_nodes=link(BETWEEN, beta))
    world = Groups(Layout(((8, 1),), (1,)), machine)
    # A barrier's and a small all-reduce's only rounds that leave the node cost alpha, and four vectors share the way.
    assert world.world("barrier", 0).seconds == pytest.approx(3 * BETWEEN)
    found = world.batch("allreduce", n, 0).seconds
    doubling = BETWEEN + 4 * n * beta
    rabenseifner = 2 * (BETWEEN + 4 * n / 8 * beta)
    assert found == pytest.approx(min(doubling, rabenseifner))


# -- three nodes of four ranks, twelve ranks -------------------------------------------------------------------------

TWELVE = slow_between(3, 4)
NETWORK = Workload(MLP([24, 24, 24, 24]), 480, 48, classification=False)


def milliseconds(*stages: tuple[int, int], layers: tuple[int, ...] = (3,)) -> float:
    layout = Layout(stages, layers, "alternating", overlap=False)
    return 1e3 * predict(NETWORK, layout, TWELVE).seconds_per_step


def test_a_model_group_across_nodes_is_as_slow_as_the_network() -> None:
    """Ranks 3, 7 and 11 are left over and form the fourth model group.

    Split alternately, three layers sum once forward and gather once, and sum once backward: three ranks all-reduce with
    folding, 3 messages, and gather with 2. The batch groups of four, on nodes 0, 1, 2, 0 and so on, take 2 messages.
    """
    assert milliseconds((4, 3)) == pytest.approx(3 + 2 + 3 + 2)


def test_only_batch_groups_cross_nodes_if_model_groups_fill_them() -> None:
    # Three ranks on three nodes all-reduce with 3 messages; four of a node sum, gather and sum in 2 rounds each.
    assert milliseconds((3, 4)) == pytest.approx(3 + 3 * 2e-3)


def test_stages_across_nodes_are_as_slow_as_their_slowest_pair() -> None:
    """Stage 0 is on nodes 0 and 1; stage 1 has a model group on node 2 and one of the ranks that are left over.

    The sum of stage 0 stays inside (3 messages of 1 us), the activations cross, stage 1 gathers (2 messages) and sums
    (3), the gradient crosses, its batch groups of 2 sum (1 message), and the loss goes to all twelve ranks in 4 rounds,
    of which the first stays inside.
    """
    assert milliseconds((2, 3), (2, 3), layers=(2, 1)) == pytest.approx(3e-3 + 1 + 2 + 3 + 1 + 1 + 3 + 1e-3)


def test_a_boundary_that_any_rank_crosses_is_between_nodes() -> None:
    """Four stages of 3 ranks on nodes of 4: ranks 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11."""
    groups = Groups(Layout(((3, 1),) * 4, (1, 1, 1, 1)), TWELVE)
    assert [groups.message(0, stage, stage + 1) for stage in range(3)] == [BETWEEN] * 3
    # 1-4 and 2-5 leave node 0, 3-6 comes to node 1 and 5-8 leaves it, 6-9 and 7-10 leave it.
    assert [groups.flows(stage, stage + 1) for stage in range(3)] == [2, 1, 2]


def test_the_planned_grid_is_the_fastest_counted_message_by_message() -> None:
    """All grids without a pipeline, priced by carrying out every algorithm's messages over the placed ranks."""
    grids = [(batch, 12 // batch) for batch in (12, 6, 4, 3, 2, 1)]
    seconds = {grid: _step_one_by_one(grid) for grid in grids}
    wanted = {"pipeline": 1, "model_split": "alternating", "shared_replicas": False, "overlap": False}
    found = plan(NETWORK, TWELVE, 12, wanted=wanted)
    assert {option.layout.stages[0]: option.seconds_per_step for option in found.options} == pytest.approx(
        {grid: seconds[grid] for grid in grids if grid[1] > 1}
    )
    assert found.best.layout.stages[0] == min((grid for grid in grids if grid[1] > 1), key=lambda grid: seconds[grid])
    free = plan(NETWORK, TWELVE, 12)
    assert free.best.layout.stages != ((2, 3), (2, 3))


def _step_one_by_one(grid: tuple[int, int]) -> float:
    """Of three layers split alternately: an all-reduce, a gather, an all-reduce, and that of the gradients."""
    (rows,) = placed((grid,), 4)
    columns = [list(column) for column in zip(*rows, strict=True)]
    model = [("allreduce", rows), ("allgather", rows), ("allreduce", rows)]
    return sum(_collective_one_by_one(*one) for one in [*model, ("allreduce", columns)])


def _collective_one_by_one(operation: str, groups: list[list[int]]) -> float:
    times = []
    for (kind, _), (way, *_) in algorithms(len(groups[0])).items():
        if kind == operation:
            rounds = (
                any(group[one.sender] != group[one.receiver] for group in groups for one in messages)
                for messages in way.rounds
            )
            times.append(sum(BETWEEN if crosses else INSIDE for crosses in rounds))
    return min(times)


def test_placement_of_many_ranks() -> None:
    """Every model group of five lies on two nodes of four, with a hundred thousand ranks too."""
    machine = slow_between(25_000, 4)
    assert Groups(Layout(((20_000, 5),), (3,)), machine).model("barrier", 0, 0).seconds == pytest.approx(3 * BETWEEN)
