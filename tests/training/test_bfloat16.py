"""Mixed precision: products of factors rounded to bfloat16, everything else in float32, on every grid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from hybridnn import MLP, Pipelining, ProcessGrid, Trainer
from hybridnn.errors import SettingError
from hybridnn.kernels.compressed_formats import rounded_to_bfloat16 as rounded_copy
from hybridnn.kernels.numpy_kernels import NumpyKernels
from hybridnn.training.config import array_dtype
from reference import pipelines, serial
from reference.bfloat16_steps import assert_rounded_alike, expected_step, in_bfloat16, one_step, rounding
from reference.cases import Case, assert_arrays_same, data, make_trainer, plan_of, run
from reference.pipeline_cases import MOMENTUM, PipelineCase, run_pipelined
from reference.pipelines import DELAYED, Pipeline, uniform

if TYPE_CHECKING:
    from mpi4py import MPI


# -- rounding ---------------------------------------------------------------------------------------------------------


def test_factors_are_rounded_as_pytorch_does() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 100_000, dtype=np.uint32)
    bits[:5] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00000001, 0x80000000  # two ties, overflow, subnormal, -0
    values = bits.view(np.float32)
    values = values[~np.isnan(values)].reshape(-1, 1)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(rounded_copy(values).view(np.uint32), expected.view(np.uint32))
    assert np.isnan(rounded_copy(np.array([np.nan], np.float32))).all()


def test_the_order_in_memory_stays_and_the_array_is_not_changed() -> None:
    values = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    before = values.copy()
    for view in (values, values.T, values[1:4], values[:, ::2].T):
        found = rounded_copy(view)
        assert found.flags.c_contiguous or found.flags.f_contiguous
        np.testing.assert_array_equal(found, in_bfloat16(view))
    assert rounded_copy(values.T).flags.f_contiguous
    np.testing.assert_array_equal(values, before)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.in_process(ranks=[1, 4])
def test_a_step_is_that_of_the_definition_to_the_last_bit_on_every_grid(comm: MPI.Intracomm) -> None:
    expected = expected_step()
    ranks = comm.size
    for batch in (size for size in (1, 2, 4) if ranks % size == 0):
        for split in ("columns", "alternating"):
            grid = ProcessGrid(comm, batch=batch, model=ranks // batch)
            found = one_step(grid, "bfloat16", model_split=split)
            assert_arrays_same(found, expected)
            assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    plain = one_step(ProcessGrid(comm, batch=ranks), "float32")
    assert any(not np.array_equal(plain[name], array) for name, array in expected.items())


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("method", ["gpipe", "1f1b", "zb-h1", "pipedream", "fr", "ddg"])
def test_a_step_of_a_pipeline_is_that_of_the_definition(comm: MPI.Intracomm, method: str) -> None:
    # A single minibatch: the asynchronous methods have no stale weights yet.
    grid = ProcessGrid(comm, pipeline=2, batch=comm.size // 2)
    assert_arrays_same(one_step(grid, "bfloat16", pipelining=Pipelining(method)), expected_step())


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("classification", [True, False])
def test_a_training_follows_the_replay_that_rounds(optimizer: str, classification: bool) -> None:
    """Where float32 and float64 differ, a factor may be rounded the other way: far less than not rounding at all."""
    case = Case(optimizer=optimizer, classification=classification)
    replay = serial.train(rounding(case.network), plan_of(case), *data(case))
    found, plain = (run(case, ProcessGrid(), dtype) for dtype in ("bfloat16", "float32"))
    assert_rounded_alike(found.weights(), replay.weights, plain.weights())
    losses = [record.train_loss for record in found.history.epochs]
    np.testing.assert_allclose(losses, replay.epoch_losses, rtol=2.0**-8)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("method", DELAYED)
def test_a_pipeline_of_stale_weights_follows_the_replay_that_rounds(comm: MPI.Intracomm, method: str) -> None:
    """Eight minibatches: every version of the weights, older, current or predicted, is rounded before it is read."""
    case, grid = MOMENTUM, ProcessGrid(comm, pipeline=comm.size)
    pipeline = Pipeline(method, uniform(case.network.layers, comm.size))
    replay = pipelines.train(rounding(case.network), plan_of(case), pipeline, *data(case))
    found, plain = (run_pipelined(PipelineCase(method, case), grid, dtype) for dtype in ("bfloat16", "float32"))
    assert_rounded_alike(found.weights(), replay.weights, plain.weights(), method)
    losses = [record.train_loss for record in found.history.epochs]
    np.testing.assert_allclose(losses, replay.epoch_losses, rtol=2.0**-8)


@pytest.mark.in_process(ranks=[1, 2])
@pytest.mark.parametrize("weight_grad", ["per-microbatch", "merged"])
def test_every_factor_is_rounded_once(comm: MPI.Intracomm, weight_grad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in every step; inputs and gradients of a layer in every microbatch."""
    rounded: list[int] = []
    original = NumpyKernels.round_factor

    def counting(kernels: NumpyKernels, source: Any, out: Any) -> None:
        rounded.append(source.size)
        original(kernels, source, out)

    monkeypatch.setattr(NumpyKernels, "round_factor", counting)
    case = replace(MOMENTUM, samples=40)
    microbatches, layers = (4, 8) if comm.size == 2 else (1, 8)
    pipelining = Pipelining("gpipe", microbatches=microbatches, weight_grad=weight_grad)
    trainer = make_trainer(case, ProcessGrid(comm, pipeline=comm.size), "bfloat16", pipelining=pipelining)
    trainer.fit(*data(case), epochs=1)
    comm.Barrier()
    # Ranks of one process share the list.
    assert len(rounded) == 4 * layers * (1 + 2 * microbatches)


def test_weights_that_are_read_from_elsewhere_are_rounded_again() -> None:
    case = Case()
    (x, _), trainer, other = (
        data(case),
        *(make_trainer(replace(case, seed=seed), ProcessGrid(), "bfloat16") for seed in (1, 2)),
    )
    expected = other.predict(x)
    assert not np.array_equal(trainer.predict(x), expected)
    trainer.load_weights(other.weights())
    np.testing.assert_array_equal(trainer.predict(x), expected)


@pytest.mark.in_process(ranks=[2])
def test_shared_replicas_train_as_private_ones(comm: MPI.Intracomm) -> None:
    case = Case(shared_replicas=True)
    one = run(replace(case, shared_replicas=False), ProcessGrid(comm, batch=comm.size), "bfloat16").weights()
    shared = run(case, ProcessGrid(comm, batch=comm.size), "bfloat16").weights()
    for name, array in one.items():
        np.testing.assert_allclose(shared[name], array, rtol=0, atol=2.0**-8 * np.abs(array).max())


def test_arrays_are_of_float32() -> None:
    assert array_dtype("bfloat16") == np.float32
    assert array_dtype("float64") == np.float64
    trainer = make_trainer(Case(), ProcessGrid(), "bfloat16")
    assert trainer.predict(data(Case())[0]).dtype == np.float32
    with pytest.raises(SettingError, match=r"training\.dtype.*float32.*float64.*bfloat16"):
        Trainer(MLP((2, 2)), dtype="float16")
