"""Formulas of the papers against counts of single messages, each other, and the closed form of the best grid."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.collectives import CommunicationCounts
from hybridnn.errors import GridError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn_papers.formulas import (
    batch_step,
    best_grid,
    data_parallel_bytes,
    integrated_step,
    model_step,
    pipeline_bytes,
    scatter_broadcast,
    scatter_direct,
    scatter_threshold,
)
from hybridnn_papers.pipeline_formulas import forward_slots, minibatch_time, stored_states, utilisation
from reference.message_counts import algorithms

WIDTHS = (16, 64, 32, 8)
TRAINED = (16, 64, 32, 64)  # no array of a rank is padded


def messages_and_bytes(operation: str, name: str, nbytes: int, ranks: int) -> tuple[int, int]:
    return algorithms(ranks)[operation, name][0].count(nbytes)[:2]


def added(parts: list[tuple[int, int]]) -> CommunicationCounts:
    return CommunicationCounts(sum(messages for messages, _ in parts), sum(nbytes for _, nbytes in parts))


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_steps_count_the_messages_of_an_allgather_and_an_allreduce_per_layer(ranks: int) -> None:
    weights = [messages_and_bytes("allreduce", "rabenseifner", 4 * a * b, ranks) for a, b in pairwise(WIDTHS)]
    assert batch_step(WIDTHS, ranks) == added(weights)
    sizes = [8 * 10 * width for width in (64, 32, 8)]
    gathers = [messages_and_bytes("allgather", "recursive_doubling", size, ranks) for size in sizes]
    reductions = [messages_and_bytes("allreduce", "rabenseifner", size, ranks) for size in sizes]
    assert model_step(WIDTHS, 10, ranks, itemsize=8) == added(gathers + reductions)


@pytest.mark.parametrize(("batch_ranks", "model_ranks"), [(1, 1), (2, 2), (4, 2), (2, 8)])
def test_integrated_step_counts_the_messages_of_one_rank_of_the_grid(batch_ranks: int, model_ranks: int) -> None:
    batch = 24
    samples = batch // batch_ranks
    parts = [
        messages_and_bytes("allgather", "recursive_doubling", 4 * samples * width, model_ranks) for width in (64, 32, 8)
    ]
    # No gradient at the inputs of the first layer is needed.
    parts += [messages_and_bytes("allreduce", "rabenseifner", 4 * samples * width, model_ranks) for width in (64, 32)]
    parts += [
        messages_and_bytes("allreduce", "rabenseifner", 4 * a * b // model_ranks, batch_ranks)
        for a, b in pairwise(WIDTHS)
    ]
    assert integrated_step(WIDTHS, batch, batch_ranks, model_ranks) == added(parts)


@pytest.mark.parametrize("ranks", [3, 31])
def test_batch_and_model_parallelism_are_special_cases(ranks: int) -> None:
    assert integrated_step(WIDTHS, 24, ranks, 1) == batch_step(WIDTHS, ranks)
    # Laugier's sum has an all-reduce at the outputs of the last layer as well.
    whole, ours = model_step(WIDTHS, 24, ranks), integrated_step(WIDTHS, 24, 1, ranks)
    assert whole.messages - ours.messages == 2 * len(bin(ranks - 1)[2:])
    assert whole.nbytes - ours.nbytes == pytest.approx(2 * 4 * 24 * 8 * (ranks - 1) / ranks)


@pytest.mark.parametrize(("ranks", "factor"), [(2, 4), (3, 9 / 4), (64, (64 / 63) ** 2)])
def test_the_printed_formula_overestimates(ranks: int, factor: float) -> None:
    for exact, paper in [
        (batch_step(WIDTHS, ranks), batch_step(WIDTHS, ranks, formula="paper")),
        (model_step(WIDTHS, 5, ranks), model_step(WIDTHS, 5, ranks, formula="paper")),
        (integrated_step(WIDTHS, 5, ranks, ranks), integrated_step(WIDTHS, 5, ranks, ranks, formula="paper")),
    ]:
        assert paper.messages == exact.messages
        assert paper.nbytes == pytest.approx(factor * exact.nbytes)


def test_the_printed_formula_as_printed() -> None:
    # One layer of 1024 x 1024, 32 ranks, 1 byte per number: 2 (5 alpha + beta 32/31 1024^2) and 3 (5 alpha + ...).
    step = batch_step((1024, 1024), 32, itemsize=1, formula="paper")
    assert step.seconds(alpha=7.0, beta=31.0) == pytest.approx(2 * (5 * 7 + 32 * 1024**2))
    step = model_step((1024, 1024), 100, 32, itemsize=1, formula="paper")
    assert step.seconds(alpha=7.0, beta=31.0) == pytest.approx(3 * (5 * 7 + 32 * 100 * 1024))


def test_one_rank_sends_nothing_and_the_printed_formula_is_undefined() -> None:
    for counts in (batch_step(WIDTHS, 1), model_step(WIDTHS, 10, 1), integrated_step(WIDTHS, 1, 1, 1)):
        assert counts == CommunicationCounts()
    for step, arguments in (
        (batch_step, (1,)),
        (model_step, (10, 1)),
        (integrated_step, (10, 1, 4)),
        (integrated_step, (10, 4, 1)),
    ):
        with pytest.raises(SettingError, match="divides by zero"):
            step(WIDTHS, *arguments, formula="paper")  # type: ignore[operator]


def crossing(layers: int, width: int, ranks: int, shorter: int, longer: int) -> Fraction:
    """Samples at which two batch axes send the same: 2 L d^2 (P_b - 1)/P + (3 L - 2) B d (P_m - 1)/P numbers."""
    weights = Fraction(2 * layers * width**2 * (longer - shorter))
    activations = (3 * layers - 2) * width * (Fraction(ranks, shorter) - Fraction(ranks, longer))
    return weights / activations


@pytest.mark.parametrize(("layers", "width", "ranks"), [(2, 1024, 16), (5, 512, 64), (12, 4096, 16)])
def test_the_batch_axis_grows_with_the_minibatch_as_in_the_closed_form(layers: int, width: int, ranks: int) -> None:
    axes = [length for length in range(1, ranks + 1) if ranks % length == 0]
    for shorter, longer in pairwise(axes):
        turn = crossing(layers, width, ranks, shorter, longer)
        assert turn == Fraction(2 * layers * width * shorter * longer, (3 * layers - 2) * ranks)
        below, above = int(turn) - 1, int(turn) + 1
        grids = [best_grid([width] * (layers + 1), batch, ranks, alpha=0.0, beta=1.0) for batch in (below, above)]
        assert [batch_ranks for batch_ranks, _ in grids] == [shorter, longer]
        assert all(batch_ranks * model_ranks == ranks for batch_ranks, model_ranks in grids)


def test_batch_parallelism_is_best_with_latency_only() -> None:
    # 2 L messages of lg P along the batch axis, 3 L - 2 along the model axis.
    assert best_grid([512] * 6, 64, 64, alpha=1.0, beta=0.0) == (64, 1)
    # With two layers both are four, and the longer batch axis is preferred.
    assert best_grid([512] * 3, 64, 64, alpha=1.0, beta=0.0) == (64, 1)


def test_every_rank_of_the_best_grid_has_work() -> None:
    assert best_grid([512] * 6, 4, 64, alpha=1.0, beta=0.0) == (4, 16)
    with pytest.raises(GridError, match=r"64 ranks: no grid has at most 4 batch ranks .* at most 8 model ranks"):
        best_grid([512, 8, 2], 4, 64, alpha=0.0, beta=1.0)


@pytest.mark.parametrize(("batch_ranks", "model_ranks"), [(3, 2), (4, 8), (16, 3)])
def test_direct_scatter_is_faster_below_the_threshold(batch_ranks: int, model_ranks: int) -> None:
    alpha, beta = 1e-6, 1e-9

    for formula in ("exact", "paper"):
        threshold = scatter_threshold(batch_ranks, model_ranks, alpha, beta, formula=formula)
        for nbytes, direct_wins in ((int(threshold * 0.99), True), (int(threshold * 1.01) + 1, False)):
            direct = scatter_direct(nbytes, batch_ranks, model_ranks).seconds(alpha, beta)
            twice = scatter_broadcast(nbytes, batch_ranks, model_ranks, formula=formula).seconds(alpha, beta)
            assert (direct < twice) is direct_wins


def test_scatters_and_their_threshold_as_printed() -> None:
    """5.6 MB / (n_b n_m - max(n_b, n_m)) from 1 microsecond and 5.6 TB/s."""
    assert scatter_direct(100, 4, 8) == CommunicationCounts(1, 3200)
    assert scatter_broadcast(100, 4, 8, formula="paper") == CommunicationCounts(2, 800)
    assert scatter_threshold(4, 8, alpha=1e-6, beta=1 / 5.6e12, formula="paper") == pytest.approx(5.6e6 / (32 - 8))
    assert scatter_threshold(2, 2, alpha=1e-6, beta=1e-9, formula="paper") == pytest.approx(500)


@pytest.mark.parametrize(("batch_ranks", "model_ranks"), [(2, 2), (4, 8), (8, 1)])
def test_a_broadcast_follows_the_scatter_that_feeds_it(batch_ranks: int, model_ranks: int) -> None:
    """One message of all parts leaves the root, then one of a part for every process that needs it."""
    scatter, broadcast = scatter_direct(100, batch_ranks, 1), scatter_direct(100, 1, model_ranks)
    assert scatter_broadcast(100, batch_ranks, model_ranks) == scatter + broadcast


def test_direct_scatter_is_always_faster_where_the_detour_sends_as_much_or_bytes_are_free() -> None:
    assert scatter_threshold(2, 2, alpha=1e-6, beta=1e-9) == inf  # 4 parts either way
    assert scatter_threshold(1, 8, alpha=1e-6, beta=1e-9) == inf
    assert scatter_threshold(4, 8, alpha=1e-6, beta=0.0) == inf


def train_one_step(comm: Any, method: str, shape: tuple[int, int, int]) -> None:
    pipeline, batch, model = shape
    grid = ProcessGrid(comm, pipeline=pipeline, batch=batch, model=model)
    settings: Any = {"model_split": "columns", "shared_replicas": False, "overlap": False, "method": method}
    trainer = Trainer(MLP(TRAINED), SGD(momentum=0.0), grid=grid, batch_size=24, **settings)
    trainer.fit(np.ones((24, TRAINED[0])), np.ones((24, TRAINED[-1])), epochs=1)


@pytest.mark.parametrize(("batch_ranks", "model_ranks"), [(4, 1), (1, 4), (2, 2), (4, 2)])
def test_integrated_step_counts_what_a_training_step_sends(batch_ranks: int, model_ranks: int) -> None:
    """The collectives of ranks in one process, by the operations and bytes that they were called with."""
    run = run_ranks(batch_ranks * model_ranks, train_one_step, "sequential", (1, batch_ranks, model_ranks))
    counted = CommunicationCounts()
    biases_and_loss = 4 * sum(TRAINED[1:]) // model_ranks + 4
    gradients = 4 * sum(a * b for a, b in pairwise(TRAINED)) // model_ranks + biases_and_loss
    samples = 24 // batch_ranks
    activations = {4 * samples * width for width in TRAINED[1:]}
    for call in run.messages:
        if call.rank == 0 and call.nbytes in activations | {gradients}:
            ranks = batch_ranks if call.nbytes == gradients else model_ranks
            name = {"allgather": "recursive_doubling", "allreduce": "rabenseifner"}[call.name]
            counted += CommunicationCounts(*messages_and_bytes(call.name, name, call.nbytes, ranks))
    formula = integrated_step(TRAINED, 24, batch_ranks, model_ranks)
    # The gradients of all layers are one array (Algorithm 1), with biases and the loss.
    levels = (batch_ranks - 1).bit_length()
    assert counted.messages == formula.messages - 2 * levels * (len(TRAINED) - 2)
    extra = 2 * biases_and_loss * (batch_ranks - 1) / batch_ranks
    assert counted.nbytes == pytest.approx(formula.nbytes + extra, abs=16)  # blocks are uneven


def test_pipeline_bytes_are_those_of_the_messages_of_a_step() -> None:
    run = run_ranks(3, train_one_step, "gpipe", (3, 1, 1))
    sent = sum(call.nbytes for call in run.messages if call.name == "send" and call.nbytes > 64)
    assert sent == pipeline_bytes(TRAINED, 24, 3) == 2 * 4 * 24 * (64 + 32)


def test_data_parallel_bytes_are_those_of_a_step_without_biases_and_loss() -> None:
    run = run_ranks(4, train_one_step, "sequential", (1, 4, 1))
    biases_and_loss = 4 * sum(TRAINED[1:]) + 4
    gradients = 4 * sum(a * b for a, b in pairwise(TRAINED)) + biases_and_loss
    calls = [call for call in run.messages if call.nbytes == gradients]
    assert len(calls) == 4
    sent = sum(bytes_sent_by_rank(call.name, call.nbytes - biases_and_loss, 4) for call in calls)
    assert sent == data_parallel_bytes(TRAINED, 4)


def test_chen_ratio_is_weights_over_samples_times_width() -> None:
    widths, batch = [2048] * 34, 128  # 33 square layers: the printed 528
    for ranks in (2, 4):
        ratio = Fraction(data_parallel_bytes(widths, ranks), pipeline_bytes(widths, batch, ranks))
        assert ratio == Fraction(33 * 2048**2, batch * 2048) == 528
    snn = [3072, *[2048] * 32, 10]
    assert data_parallel_bytes(snn, 4) / pipeline_bytes(snn, batch, 4) == pytest.approx(520.1, abs=0.05)
    assert data_parallel_bytes(snn, 1) == pipeline_bytes(snn, batch, 1) == 0


@pytest.mark.parametrize(
    ("call", "setting"),
    [
        (lambda: batch_step((4,), 2), "widths"),
        (lambda: batch_step((4, 0), 2), "widths"),
        (lambda: batch_step((4, 4), 0), "ranks"),
        (lambda: model_step((4, 4), 0, 2), "batch"),
        (lambda: integrated_step((4, 4), 4, 0, 2), "batch_ranks"),
        (lambda: integrated_step((4, 4), 4, 2, 0), "model_ranks"),
        (lambda: data_parallel_bytes((4,), 2), "widths"),
        (lambda: data_parallel_bytes((4, 4), 0), "ranks"),
        (lambda: pipeline_bytes((4, 4), 0, 1), "batch"),
        (lambda: pipeline_bytes((4, 4), 4, 2), "parallel.pipeline"),
        (lambda: scatter_broadcast(4, 2, 2, formula="printed"), "formula"),
        (lambda: batch_step((4, 4), 2, formula="printed"), "formula"),
        (lambda: best_grid((4, 4), 4, 0, 1.0, 1.0), "ranks"),
        (lambda: best_grid((4, 4), 0, 4, 1.0, 1.0), "batch"),
        (lambda: minibatch_time("gpipe", 4, 1.0, 1.0), "method"),
        (lambda: minibatch_time("fr", 0, 1.0, 1.0), "stages"),
        (lambda: minibatch_time("fr", 2, -1.0, 1.0), "forward"),
        (lambda: minibatch_time("fr", 2, 1.0, float("inf")), "backward"),
        (lambda: minibatch_time("fr", 2, 1.0, 1.0, formula="printed"), "formula"),
        (lambda: stored_states("fr", 3, 2), "stage"),
        (lambda: forward_slots(2, 0), "inputs"),
        (lambda: utilisation(0), "stages"),
    ],
)
def test_values_out_of_range_are_refused(call: Callable[[], object], setting: str) -> None:
    with pytest.raises(SettingError) as error:
        call()
    assert error.value.setting == setting
