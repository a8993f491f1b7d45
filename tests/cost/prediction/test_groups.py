"""Layouts and their groups of ranks on nodes."""

from collections import Counter
from collections.abc import Iterable
from math import ceil, lcm, prod

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.config.settings import ParallelSettings, keys_of_layout
from hybridnn.cost.collectives import crossings_of, pairs, rounds_of
from hybridnn.cost.machine import Machine
from hybridnn.cost.plan import plan
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import Groups, replica_groups
from hybridnn.pipeline.checks.lint import audit
from hybridnn.pipeline.execution.point_to_point import StagePosition, pieces_sent
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.text import counted
from reference.machines import make_machine, place_ranks
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
        shared = Layout(stages, layers, shared_replicas=True, node_ranks=ranks_per_node)
        groups, grid = Groups(shared, machine), placed(stages, ranks_per_node)
        for stage, (batch, model) in enumerate(stages):
            rows, columns = grid[stage], list(zip(*grid[stage], strict=True))
            spans = any(len(set(row)) > 1 for row in rows)
            spanning += spans and model <= ranks_per_node
            assert (groups.model(stage).collective("barrier", 0).seconds > 900 * INSIDE) == spans, (
                stages,
                ranks_per_node,
            )
            assert (groups.batch(stage).collective("barrier", 0).seconds > 900 * INSIDE) == any(
                len(set(one)) > 1 for one in columns
            )
            ways = Counter(tuple(times for _, times in sorted(Counter(one).items())) for one in columns)
            assert replica_groups(shared, stage) == ways
            assert sum(replica_groups(shared, stage).values()) == model
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


def _crossings_one_by_one(way: Algorithm, nodes: list[list[int]], nbytes: int) -> Counter[tuple[float, float]]:
    carried = 0 if way.operation == "barrier" else nbytes
    sizes = [len(range(block, carried, way.blocks)) for block in range(way.blocks)]
    found = Counter[tuple[float, float]]()
    for messages in way.rounds:
        crossing = busiest((group[one.sender], group[one.receiver], 1.0) for group in nodes for one in messages)
        found[crossing, max(sum(sizes[block] for block in one.blocks) for one in messages)] += 1
    return found


TWELVE = slow_between(3, 4)
NETWORK = Workload(MLP([24, 24, 24, 24]), 480, 48, classification=False)


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


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(((1, 1),), (3,)), "one rank"),
        (Layout(((4, 2),), (3,), "alternating", overlap=False), "batch 4 x model 2 (alternating), without overlap"),
        (
            Layout(((4, 2),) * 2, (3, 1), method="1f1b", microbatches=8),
            "pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches",
        ),
        (Layout(((3, 1), (1, 1)), (3, 1), method="pipedream"), "stages 3 x 1 + 1 x 1, pipedream"),
    ],
)
def test_descriptions(layout: Layout, text: str) -> None:
    assert layout.describe() == text


def pipeline(method: str, stages: int) -> Layout:
    chosen = METHODS[method]
    return Layout(
        ((1, 1),) * stages,
        (1,) * stages * chosen.chunks[0],
        method=method,
        microbatches=stages * max(1, chosen.microbatches_per_stage) if chosen.cuts_minibatches else 1,
        chunks=chosen.chunks[0],
    )


@pytest.mark.parametrize("name", METHODS)
def test_staleness_agrees_with_an_audit_of_the_schedule(name: str) -> None:
    layout = pipeline(name, 4)
    rows = [row for row in audit(layout.schedule(1 if layout.exact else 16)) if row.minibatch >= 8 or layout.exact]
    ages = {row.staleness for row in rows}
    predicts = any(row.forward.ahead or row.backward.ahead for row in rows)
    consistent = all(row.consistent for row in rows)
    text = layout.describe_staleness()
    if ages == {0}:
        assert text == "exact"
    elif predicts:
        assert text == "weights predicted"
    elif consistent:
        assert text == f"stale by {'up to ' * (len(ages) > 1)}{counted(max(ages), 'update')}"
    else:
        assert text == ("replayed" if name == "fr" else "inconsistent")


def test_keys_of_a_layout() -> None:
    layout = Layout(((4, 2),) * 2, (3, 1), "alternating", False, "gpipe", 8, merges=True)
    chosen = ParallelSettings.model_validate(keys_of_layout(layout))
    assert (chosen.pipeline, chosen.batch, chosen.model, chosen.model_split) == (2, 4, 2, "alternating")
    assert (chosen.overlap, chosen.method, chosen.microbatches, chosen.partition) == (False, "gpipe", 8, (3, 1))
    assert "method" not in keys_of_layout(Layout(((4, 2),), (4,)))


@pytest.mark.parametrize(("minibatches", "of_first_stage"), [(12, 65 / 12), (391, 3855 / 391)])
def test_the_drain_after_few_minibatches_lowers_the_mean_staleness(minibatches: int, of_first_stage: float) -> None:
    """Stage 0 of 11 is stale by min(t, 10)."""
    found = pipeline("pipedream", 11).mean_staleness(minibatches)
    assert found[0] == pytest.approx(of_first_stage)
    assert found[-1] == 0
    assert list(found) == sorted(found, reverse=True)
    assert pipeline("1f1b", 3).mean_staleness(minibatches) == (0, 0, 0)
