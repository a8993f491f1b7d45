"""Calibration: measured times of computation and of messages."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.cost.calibration import communication, computation
from hybridnn.cost.calibration.communication import (
    LEAST_RANGE,
    MOST_BYTES,
    largest_size,
    measure_communication,
    measure_overhead,
    measure_overlap,
    measured_groups,
    plan_cases,
)
from hybridnn.cost.calibration.computation import (
    PassSample,
    StepCase,
    StepTime,
    TimedNetwork,
    calibrate_compute,
    draw_shape,
    fit_noise,
    measure_elements,
    measure_passes,
    measure_steps,
)
from hybridnn.cost.machine_file import read_machine
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import LayerSeconds
from hybridnn.runs.step_timer import TrainingTimer
from mpi_runner.slowness import deadline

CACHE_ELEMENTS = 2**20 // 4
"""The synthetic cache holds 1 MiB."""


FORWARD_FACTOR, BACKWARD_FACTOR = 1.2, 1.1
CALLS = {"forward": 3e-6, "input_gradient": 4e-6, "weight_gradient": 5e-6}


def pass_alone(kind: str, outputs: int, inputs: int, samples: int) -> float:
    """Seconds of a pass; the passes differ in the price of a call."""
    weights = outputs * inputs
    uncached = 3e-10 * weights * (weights >= CACHE_ELEMENTS)
    prices = samples * (5e-10 * outputs + 2e-10 * inputs) + 4e-10 * weights + 2e-11 * weights * samples
    return CALLS[kind] + prices + uncached


def element_work(kind: str, elements: int) -> float:
    """Seconds of element-wise work; the kinds differ in the price of a call."""
    return 1e-6 * (computation.ELEMENT_KINDS.index(kind) + 1) + elements * 1e-9


def passes_alone(case: StepCase) -> tuple[float, float]:
    """Seconds of the forward and the backward passes of a step, if they took as long as alone."""
    forward = backward = 0.0
    microbatches = case.layout.microbatches
    for number in range(microbatches):
        samples = case.batch_size // microbatches + (number < case.batch_size % microbatches)
        for index, layer in enumerate(case.model.layers):
            shape = layer.outputs, layer.inputs, samples
            activated = layer.activation == "relu"
            forward += pass_alone("forward", *shape)
            forward += activated * element_work("forward relu", layer.outputs * samples)
            backward += pass_alone("weight_gradient", *shape)
            backward += activated * element_work("gradient relu", layer.outputs * samples)
            if index:
                backward += pass_alone("input_gradient", *shape)
            if number:  # the gradient is added to those of earlier microbatches
                backward += element_work("packing", layer.outputs * layer.inputs)
    return forward, backward


def synthetic_step(case: StepCase) -> StepTime:
    """A step with 50 µs of overhead, 4 µs more per instruction, and 1 ns per loaded element."""
    outputs, instructions = case.batch_size * case.model.sizes[-1], 6 * case.layout.microbatches
    parameters, arrays = case.model.parameters, {"sgd": 2, "momentum": 3, "adam": 4}[case.optimizer]
    per_output = 3e-9 if case.classification else 1e-9
    per_parameter = arrays * 1e-10 * (1.5 if parameters * arrays >= CACHE_ELEMENTS else 1)
    forward, backward = passes_alone(case)
    layers = case.layout.microbatches * len(case.model.layers)
    computing = {
        "forward": FORWARD_FACTOR * forward + layers * 2e-6,
        "backward": BACKWARD_FACTOR * backward + layers * 6e-6,
        "loss": 20e-6 * case.layout.microbatches + outputs * per_output,
        "update": 10e-6 + parameters * per_parameter,
    }
    overhead = 50e-6 + 4e-6 * instructions + 1e-9 * case.loaded_elements
    return StepTime(sum(computing.values()) + overhead, computing, instructions)


def synthetic_passes(dtype: str, budget: float, generator: np.random.Generator, ranks: Group) -> list[TimedNetwork]:
    def sample() -> PassSample:
        outputs, inputs, samples = (int(2 ** generator.uniform(2, 11)) for _ in range(3))
        seconds = np.array([pass_alone(kind, outputs, inputs, samples) for kind in CALLS])
        return PassSample(outputs, inputs, samples, False, LayerSeconds(*(seconds * generator.lognormal(0, 0.02, 3))))

    # The quartiles of 1, 1 and 2 seconds are half a second apart; those of three exponential delays of mean 1, whose
    # expectations are 1/3, 5/6 and 11/6, are 3/4 apart.
    return [TimedNetwork(tuple(sample() for _ in range(3)), (1.0, 2.0, 1.0)) for _ in range(150)]


def synthetic_elements(
    dtype: str, budget: float, generator: np.random.Generator, ranks: Group
) -> dict[str, list[tuple[float, float]]]:
    sizes = [int(2 ** generator.uniform(6, 22)) for _ in range(20)]
    found = {kind: [(n, element_work(kind, n)) for n in sizes] for kind in computation.ELEMENT_KINDS}
    # 48 ns for each row of 16 elements, in addition to its elements.
    return found | {"joining": [(n, seconds + n / 16 * 48e-9) for n, seconds in found["joining"]]}


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes and element-wise work with the known costs, which are not measured."""
    monkeypatch.setattr(computation, "measure_passes", synthetic_passes)
    monkeypatch.setattr(computation, "measure_elements", synthetic_elements)


def test_known_costs_are_recovered_without_the_held_out_networks(synthetic, monkeypatch) -> None:
    fitted: list[int] = []
    fit_pass = computation._fit_pass

    def counting(samples: Any, kind: str, cache: float) -> Any:
        fitted.append(len(samples))
        return fit_pass(samples, kind, cache)

    monkeypatch.setattr(computation, "_fit_pass", counting)
    (found,), errors = calibrate_compute(ProcessGrid(), ["float32"], deadline(0.3), 0, synthetic_step)
    assert {error.samples for error in errors} == {3 * 37}
    assert set(fitted) == {3 * (150 - 37)}
    assert found.cache_bytes == 2**20
    for kind, factor, per_layer in (
        ("forward", FORWARD_FACTOR, 2e-6),
        ("input_gradient", BACKWARD_FACTOR, 3e-6),
        ("weight_gradient", BACKWARD_FACTOR, 3e-6),
    ):
        cost = getattr(found, kind)
        assert cost.call_seconds == pytest.approx(factor * CALLS[kind] + per_layer, rel=0.25)
        assert cost.output_seconds == pytest.approx(factor * 5e-10, rel=0.1)
        assert cost.input_seconds == pytest.approx(factor * 2e-10, rel=0.2)
        assert cost.weight_seconds == pytest.approx(factor * 4e-10, rel=0.1)
        assert cost.uncached_weight_seconds == pytest.approx(factor * 3e-10, rel=0.2)
        assert cost.multiply_add_seconds == pytest.approx(factor * 2e-11, rel=0.02)
    assert all(error.mean < 0.03 for error in errors)
    assert found.noise == pytest.approx(0.5 / 0.75)
    assert found.step_seconds == pytest.approx(50e-6, rel=0.01)
    assert found.instruction_seconds == pytest.approx(4e-6, rel=0.01)
    assert found.load.number_seconds == pytest.approx(1e-9, rel=0.01)
    assert found.packing.number_seconds == pytest.approx(1e-9, rel=0.01)
    assert found.row_seconds == pytest.approx(48e-9, rel=0.01)
    tanh = found.activations["tanh"].gradient
    assert tanh.call_seconds == pytest.approx(BACKWARD_FACTOR * element_work("gradient tanh", 0), rel=0.02)
    assert tanh.number_seconds == pytest.approx(BACKWARD_FACTOR * 1e-9, rel=0.02)
    for name, arrays in (("sgd", 2), ("momentum", 3), ("adam", 4)):
        update = found.updates[name]
        assert update.call_seconds == pytest.approx(10e-6, rel=0.01)
        assert update.number_seconds == pytest.approx(arrays * 1e-10, rel=0.01)
        assert update.uncached_number_seconds == pytest.approx(arrays * 0.5e-10, rel=0.01)
    for name, seconds in (("mse", 1e-9), ("cross_entropy", 3e-9)):
        assert found.losses[name].call_seconds == pytest.approx(20e-6, rel=0.01)
        assert found.losses[name].number_seconds == pytest.approx(seconds, rel=0.01)


def test_drawn_shapes_cover_all_sizes_within_the_limit() -> None:
    generator = np.random.default_rng(0)
    drawn = [draw_shape(generator) for _ in range(400)]
    assert {len(sizes) for sizes, _ in drawn} == {2, 3, 4, 5, 6}
    widths = [width for sizes, _ in drawn for width in sizes]
    assert min(widths) < 8
    assert max(widths) > 2048
    assert max(3 * samples * sum(np.multiply(sizes[1:], sizes[:-1])) for sizes, samples in drawn) <= 2e9


def test_everything_is_measured() -> None:
    dtype, generator = "float64", np.random.default_rng(0)
    alone = Group(None, "alone", Recorder())
    networks = measure_passes(dtype, 0.05, generator, alone)
    layers = [layer for one in networks for layer in one.layers]
    assert all(layer.seconds.forward > 0 and layer.seconds.weight_gradient > 0 for layer in layers)
    assert [layer.first for layer in networks[0].layers] == [True] + [False] * (len(networks[0].layers) - 1)
    assert all(len(one.rounds) >= 5 and min(one.rounds) > 0 for one in networks)
    elements = measure_elements(dtype, 0.05, generator, alone)
    assert set(elements) == set(computation.ELEMENT_KINDS)
    assert all(seconds > 0 for samples in elements.values() for _, seconds in samples)


@pytest.mark.parametrize(("optimizer", "classification"), [("sgd", True), ("momentum", False), ("adam", True)])
def test_steps_are_timed_with_the_trainer(optimizer: str, classification: bool) -> None:
    layout = Layout(((1, 1),), (2,), overlap=False, method="gpipe", microbatches=3)
    case = StepCase(MLP([5, 4, 2], "relu"), 12, layout, "float64", optimizer, classification)
    timed = TrainingTimer()(case)
    # A load, a forward and a backward pass per microbatch; one reduction and one update.
    assert timed.instructions == 3 * 3 + 2
    assert set(timed.computing) == {"forward", "backward", "loss", "update"}
    assert all(seconds > 0 for seconds in timed.computing.values())
    assert 0 < timed.overhead < timed.seconds


def test_cases_of_steps_are_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation, "LEAST_STEPS", 40)
    seen: list[StepCase] = []

    def timing(case: StepCase) -> StepTime:
        seen.append(case)
        return synthetic_step(case)

    measure_steps("float32", 0.0, np.random.default_rng(0), Group(None, "alone", Recorder()), timing)
    assert {case.optimizer for case in seen} == {"sgd", "momentum", "adam"}
    assert {case.classification for case in seen} == {True, False}
    assert {1, 2, 4, 8} <= {case.layout.microbatches for case in seen}
    assert min(case.batch_size // case.layout.microbatches for case in seen) >= 4


@pytest.mark.in_process(ranks=[2])
def test_one_busy_rank_and_two(comm: MPI.Intracomm, synthetic: None) -> None:
    found, _ = calibrate_compute(ProcessGrid(comm), ["float32"], 0.4, 0, synthetic_step)
    assert [one.busy_ranks for one in found] == ([1, 2] if comm.rank == 0 else [2])


def test_the_mean_of_exponential_delays_is_recovered() -> None:
    generator = np.random.default_rng(0)
    times = np.concatenate([seconds * (1 + generator.exponential(0.2, (200, 40))) for seconds in (1e-4, 1e-2)])
    # The median has ln 2 of a delay in it already, and the delay is relative to it.
    assert fit_noise(times.tolist()) == pytest.approx(0.2 / (1 + 0.2 * np.log(2)), rel=0.05)
    times[:20] *= 1 + generator.exponential(5.0, (20, 40))  # a few disturbed networks
    assert fit_noise(times.tolist()) == pytest.approx(0.2 / (1 + 0.2 * np.log(2)), rel=0.1)
    assert fit_noise([[2.0] * 5, [3.0] * 7]) == 0


@pytest.mark.parametrize("factor", [3.0, 1000.0])
def test_noise_is_robust_against_a_few_slow_rounds(factor: float) -> None:
    """Of delays with 5 % outliers: quartiles of the rest move by a seventh, the mean by as much as the outliers."""
    generator = np.random.default_rng(2)
    times = 1 + generator.exponential(0.2, (300, 40))
    times[generator.random(times.shape) < 0.05] *= factor
    clean = 0.2 / (1 + 0.2 * np.log(2))
    assert clean < fit_noise(times.tolist()) < 1.2 * clean


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_pace_is_the_mean_of_the_slowest_rank(ranks: int) -> None:
    compute = read_machine("cluster-1024").compute[0]
    assert (compute.noise, compute.pace(1024)) == (0, 1)
    delays = 0.2 * np.random.default_rng(0).exponential(size=(40_000, ranks))
    drawn = 1.0 - 0.2 * np.log(2) + delays.max(1).mean()
    assert compute.model_copy(update={"noise": 0.2}).pace(ranks) == pytest.approx(drawn, rel=0.005)


@pytest.mark.mpi(ranks=[3])
def test_every_operation_is_measured_in_every_group_with_the_same_samples_on_every_rank(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, recorder=Recorder(1 << 20))
    told: list[str] = []
    samples = measure_communication(grid, 0.2, 0, told.append)
    assert len(told) == 2
    assert not any(sample.spans_nodes for sample in samples)
    assert {sample.ranks for sample in samples} == {2, 3}
    for ranks in (2, 3):
        own = [sample for sample in samples if sample.ranks == ranks]
        assert {sample.operation for sample in own} == operations_of(ranks)
        assert sum(sample.held_out for sample in own) >= 20
        # The quickest all-reduce of many bytes takes longer than that of few, whatever the machine and its load.
        reduced = [one for one in own if one.operation == "allreduce"]
        large = [one.seconds for one in reduced if one.nbytes >= 1 << 16]
        assert min(large) > min(one.seconds for one in reduced if one.nbytes <= 64)
    assert all(np.isfinite(sample.seconds) and 0 < sample.seconds < 10 for sample in samples)
    assert comm.allgather(samples) == [samples] * comm.size
    # All are in the group of all; only two of them send messages from rank to rank.
    calls = Counter(event.name for event in grid.recorder.events if event.axis == "calibration")
    assert min(calls[name] for name in ("barrier", "allreduce", "allgather", "broadcast")) > 0
    assert (calls["send"] > 0) == (calls["receive"] > 0) == (grid.rank < 2)


def operations_of(ranks: int) -> set[str]:
    return {"barrier", "allreduce", "iallreduce", "allgather", "broadcast"} | ({"send"} if ranks == 2 else set())


@pytest.mark.mpi(ranks=[2])
def test_overlap_is_within_its_bounds(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    hidden, slowdown = measure_overlap(grid.world, 0.1)
    assert 0 <= hidden <= 1
    assert 1 <= slowdown < 1000
    assert {(hidden, slowdown)} == set(comm.allgather((hidden, slowdown)))


@pytest.mark.mpi(ranks=[3])
def test_overheads_are_measured_between_the_first_two_nodes(comm, monkeypatch) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 0, 2])
    grid = ProcessGrid(comm, recorder=Recorder(1 << 20))
    found = measure_overhead(grid, 0.1)
    assert [nbytes for nbytes, _ in found] == list(communication.OVERHEAD_BYTES)
    assert all(0 <= seconds < 10 for _, seconds in found)
    assert any(seconds > 0 for _, seconds in found)
    assert comm.allgather(found) == [found] * comm.size
    calls = Counter(event.name for event in grid.recorder.events if event.axis == "calibration")
    assert (calls["send"] > 0) == (calls["receive"] > 0) == (grid.rank in (0, 2))


@pytest.mark.parametrize(
    ("ranks", "expected"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 3, 4]), (6, [2, 3, 4, 6]), (16, [2, 3, 4, 8, 16])]
)
def test_groups_of_one_node(ranks: int, expected: list[int]) -> None:
    groups = measured_groups([0] * ranks)
    assert [group.members for group in groups] == [tuple(range(size)) for size in expected]
    assert not any(group.spans_nodes for group in groups)


def test_groups_of_several_nodes() -> None:
    groups = measured_groups([5, 5, 0, 0, 0, 0, 9, 9])
    assert [group.members for group in groups if not group.spans_nodes] == [(2, 3), (2, 3, 4), (2, 3, 4, 5)]
    # One rank for each node, and all.
    between = [(group.members, group.ranks_per_node) for group in groups if group.spans_nodes]
    assert between == [((0, 2), 1), ((0, 2, 6), 1), (tuple(range(8)), 4)]
    alone = measured_groups([3, 1, 2])
    assert [(group.members, group.spans_nodes) for group in alone] == [((0, 1), True), ((0, 1, 2), True)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_sizes_cover_the_range_and_a_third_inside_it_is_held_out(ranks: int) -> None:
    cases = plan_cases(ranks, MOST_BYTES, np.random.default_rng(0))
    operations = Counter(case.operation for case in cases)
    assert set(operations) == operations_of(ranks)
    for operation in set(operations) - {"barrier"}:
        own = [case for case in cases if case.operation == operation]
        assert sum(case.held_out for case in own) == len(own) / 3
        fitted = [case.nbytes for case in own if not case.held_out]
        held_out = [case.nbytes for case in own if case.held_out]
        assert not set(fitted) & set(held_out)
        assert min(fitted) < min(held_out)
        assert max(held_out) < max(fitted) <= 2**26 + 4 * ranks
        assert min(fitted) < 32
        assert max(fitted) > 2**24
        assert all(case.nbytes % 4 == 0 and case.nbytes > 0 for case in own)
        # Evenly on a logarithmic scale: between a fifth and a third of the octaves 8 B to 64 MiB in each quarter.
        quarters = Counter(min(int((np.log2(case.nbytes) - 3) / (23 / 4)), 3) for case in own)
        assert all(len(own) / 6 <= quarters[quarter] <= len(own) / 3 for quarter in range(4))


def test_the_largest_size_is_what_fits_the_time_and_the_network() -> None:
    link = 25e6  # bytes per second: 200 Mbit/s
    trial = 2 * LEAST_RANGE / link
    assert largest_size(10.0, trial) == int(10 * link / 2 / 80)
    assert largest_size(20.0, trial) == 2 * largest_size(10.0, trial)
    assert largest_size(0.1, trial) == LEAST_RANGE
    assert largest_size(60.0, 1e-5) == MOST_BYTES


def test_short_measurements_have_smaller_distinct_messages_and_repeat_with_the_seed() -> None:
    short = plan_cases(3, LEAST_RANGE, np.random.default_rng(0))
    assert max(case.nbytes for case in short) <= 2**18 + 8
    assert len(short) == len({(case.operation, case.nbytes) for case in short})
    assert short == plan_cases(3, LEAST_RANGE, np.random.default_rng(0))
    assert short != plan_cases(3, LEAST_RANGE, np.random.default_rng(1))
