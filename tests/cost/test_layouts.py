"""Feasible layouts, against counts by hand; the trainer accepts all of them."""

from dataclasses import replace
from itertools import product

import pytest

from hybridnn import MLP, SGD
from hybridnn.cost.plan import feasible_layouts, most_ranks
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import replica_groups
from hybridnn.cost.prediction.predict import balanced_layers
from hybridnn.errors import SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from reference.machines import make_machine

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
        assert by_method[name] == (cut if method.cuts_minibatches else [1]), name
    assert {one.chunks for one in found if one.method == "interleaved"} == {2}
    # Three stages: powers of two, and those times three; interleaved schedules take only multiples of the stages.
    three = [one for one in layouts(replace(DEEP, model=MLP([8] + [16] * 8)), 3) if len(one.stages) == 3]
    assert sorted(one.microbatches for one in three if one.method == "gpipe") == [2, 3, 4, 6, 8, 12, 16, 24]
    assert sorted(one.microbatches for one in three if one.method == "interleaved") == [3, 6, 12, 24]
    # Two chunks for each of 3 stages need 6 layers.
    assert not [one for one in layouts(DEEP, 3) if one.method == "interleaved"]


def test_clipping_and_sgd_without_momentum_exclude_methods() -> None:
    clipped = {one.method for one in layouts(replace(DEEP, clips=True), 4)}
    assert clipped == {name for name, method in METHODS.items() if method.exact}
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
