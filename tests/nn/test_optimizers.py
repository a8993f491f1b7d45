"""Optimizers and learning rates."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hybridnn import SGD, Adam, AdamW, Constant, Cosine, NAdam, Step, WarmupLinear
from hybridnn.diagnostics.hosts import CPU_INFO
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.kernels import UPDATE_BLOCK as BLOCK
from hybridnn.nn.optimizers import new_state
from hybridnn.parallel.shared_replica import slice_bounds
from hybridnn.utils.memory import proc_value
from reference.cases import OPTIMIZERS, assert_close
from reference.serial import Schedule

SIZES = (1, 3, 16, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_updates(name: str, size: int) -> None:
    optimizer, rule = OPTIMIZERS[name]
    random = np.random.default_rng(size)
    found = random.standard_normal(size)
    expected = found.copy()
    state = new_state(optimizer, found, NUMPY)
    slots = {slot: np.zeros(size) for slot in rule.slots()}
    for step in range(1, 6):
        gradient = random.standard_normal(size)
        argument = gradient.copy()
        rate = rule.lr / step
        optimizer.update(found, argument, state, rate)
        expected = rule.step(expected, gradient, slots, step, rate)
        assert np.array_equal(argument, gradient), "the gradient was changed"
    assert_close(found, expected, name, 1e-13)
    assert sorted(state.slots) == sorted(slots)
    for slot, array in slots.items():
        assert_close(state.slots[slot], array, f"{name}: {slot}", 1e-13)
    assert state.updates == 5


def check_slices(name: str, dtype: str) -> None:
    """Compare three updates of slices, as ranks own them, with those of the whole buffer."""
    optimizer, random = OPTIMIZERS[name][0], np.random.default_rng(0)
    for size, ranks in ((13 * 16, 3), (BLOCK + 7 * 16, 2)):
        full, *gradients = random.standard_normal((4, size)).astype(dtype)
        bounds = [slice(*slice_bounds(size, ranks, rank)) for rank in range(ranks)]
        parts = [full[where].copy() for where in bounds]
        state, states = new_state(optimizer, full, NUMPY), [new_state(optimizer, part, NUMPY) for part in parts]
        with threadpool_limits(1, user_api="blas"):
            for gradient in gradients:
                optimizer.update(full, gradient, state, 0.01)
                for where, part, part_state in zip(bounds, parts, states, strict=True):
                    optimizer.update(part, gradient[where], part_state, 0.01)
        assert np.array_equal(full, np.concatenate(parts)), (name, dtype, size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_slices_equal_the_full_update(name: str, dtype: str) -> None:
    check_slices(name, dtype)


CORES = {
    "Nehalem": {"sse4_2"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512vl", "avx512bw"},
}
"""Processors for which OpenBLAS has kernels, and what they need."""

CHECK_ALL = """
import sys
from threadpoolctl import threadpool_info
from nn.test_optimizers import OPTIMIZERS, check_slices
found = {pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"}
assert found <= {sys.argv[1]}, found
for name in OPTIMIZERS:
    for dtype in ("float32", "float64"):
        check_slices(name, dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize("core", CORES)
def test_updates_of_slices_equal_the_full_update_with_the_kernels_of_other_processors(core: str) -> None:
    if not CORES[core] <= set(proc_value(CPU_INFO, "flags").split()):
        pytest.skip(f"this processor has no {' and '.join(sorted(CORES[core]))}")
    environment = os.environ | {"OPENBLAS_CORETYPE": core, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", CHECK_ALL, core], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_stays_float32(name: str) -> None:
    optimizer, rule = OPTIMIZERS[name]
    weights = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    gradient = np.float32(0.5) * weights
    slots = {slot: np.zeros(100) for slot in rule.slots()}
    expected = rule.step(weights.astype(np.float64), gradient.astype(np.float64), slots, 1, 0.01)
    state = new_state(optimizer, weights, NUMPY)
    optimizer.update(weights, gradient, state, 0.01)
    arrays = [weights, state.scratch, *state.slots.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert_close(weights, expected, name, 1e-6)


@pytest.mark.parametrize("updates", [0, 30, 20_000])
def test_factors_of_a_late_update_of_nadam_have_the_products_of_all_momenta(updates: int) -> None:
    optimizer, state = NAdam(lr=0.5), new_state(NAdam(), np.zeros(1), NUMPY)
    state.updates = updates
    momenta = 0.99 * (1 - 0.96 ** (0.004 * np.arange(1, updates + 3)) / 2)
    of_gradient = 0.5 * (1 - momenta[-2]) / (1 - momenta[:-1].prod())
    of_first = 0.5 * momenta[-1] / (1 - momenta.prod())
    expected = (of_gradient, of_first, (1 - 0.999 ** (updates + 1)) ** 0.5, 1.0)
    assert optimizer.step_scalars(state, 0.5) == pytest.approx(expected, rel=1e-14)


def test_fields_without_a_range_take_all_numbers() -> None:
    @dataclass(frozen=True)
    class Own(SGD):
        shift: float = -1.0

    assert Own(shift=-2.5).shift == -2.5
    with pytest.raises(SettingError, match=r"optimizer.shift = 'a': must be a number"):
        Own(shift="a")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_into_another_buffer(name: str, size: int) -> None:
    optimizer, _ = OPTIMIZERS[name]
    random = np.random.default_rng(size)
    before, gradients = random.standard_normal(size), random.standard_normal((3, size))
    in_place, state = before.copy(), new_state(optimizer, before, NUMPY)
    weights, other_state = before.copy(), new_state(optimizer, before, NUMPY)
    for gradient in gradients:
        optimizer.update(in_place, gradient, state, 0.1)
        before, out = weights.copy(), np.full(size, np.nan)
        optimizer.update(weights, gradient, other_state, 0.1, out=out)
        assert np.array_equal(weights, before)
        assert np.array_equal(out, in_place)
        weights = out


@pytest.mark.parametrize("size", SIZES)
def test_prediction_of_sgd(size: int) -> None:
    optimizer = SGD(0.1, momentum=0.5)
    random = np.random.default_rng(size)
    weights, out = random.standard_normal(size), np.empty(size)
    state = new_state(optimizer, weights, NUMPY)
    optimizer.predict(weights, state, 0.1, 3, out)
    assert np.array_equal(out, weights), "no velocity yet"
    constant = random.standard_normal(size)
    for _ in range(60):  # the velocity of a constant gradient converges to g / (1 - momentum)
        optimizer.update(weights, constant, state, 0.1)
    optimizer.predict(weights, state, 0.1, 3, out)
    for _ in range(3):
        optimizer.update(weights, constant, state, 0.1)
    assert_close(out, weights, "three updates ahead", 1e-12)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("size", SIZES)
def test_prediction_of_adam_repeats_its_last_direction(kind: type[Adam], size: int) -> None:
    optimizer = kind(0.01, weight_decay=0.0)
    random = np.random.default_rng(size)
    weights, out = random.standard_normal(size), np.empty(size)
    state = new_state(optimizer, weights, NUMPY)
    optimizer.predict(weights, state, 0.01, 2, out)
    assert np.array_equal(out, weights), "no direction yet"
    for _ in range(4):
        before = weights.copy()
        optimizer.update(weights, random.standard_normal(size), state, 0.01)
    optimizer.predict(weights, state, 0.02, 3, out)
    # The last update moved by 0.01 times the direction.
    assert_close(out, weights + 3 * 2 * (weights - before), "three updates of twice the rate", 1e-9)


PER_EPOCH, UPDATES = 7, 35

PAIRS = [
    (Constant(), Schedule()),
    (Step((1, 3)), Schedule("step", milestones=(1, 3), factor=0.1)),
    (Step((2,), 0.5), Schedule("step", milestones=(2,), factor=0.5)),
    (WarmupLinear(), Schedule("linear", warmup_epochs=1.0)),
    (WarmupLinear(0), Schedule("linear")),
    (WarmupLinear(1.5), Schedule("linear", warmup_epochs=1.5)),
    (Cosine(), Schedule("cosine")),
    (Cosine(2), Schedule("cosine", warmup_epochs=2.0)),
]


@pytest.mark.parametrize(("schedule", "expected"), PAIRS)
def test_closed_forms(schedule: Any, expected: Schedule) -> None:
    for update in range(UPDATES):
        factor = schedule.multiplier(update, PER_EPOCH, UPDATES)
        assert factor == pytest.approx(expected.at(update, PER_EPOCH, UPDATES), rel=1e-13), update


@pytest.mark.parametrize("schedule", [WarmupLinear(0), Cosine(0), WarmupLinear(9), Cosine(9)])
@pytest.mark.parametrize("updates", [1, 2])
def test_runs_of_one_or_two_updates_have_rates(schedule: Any, updates: int) -> None:
    for update in range(updates):
        assert 0 <= schedule.multiplier(update, 1, updates) <= 1
    assert schedule.multiplier(0, 1, updates) > 0
