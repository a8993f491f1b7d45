"""The benchmark of training on a GPU: its length, what it charges, and the products that it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu_training
from benchmarks.cases import GPU_CASES, Case, our_run
from benchmarks.gpu_kernels import torch_products
from benchmarks.gpu_training import long_enough
from benchmarks.limits import products_of, torch_products_of
from hybridnn import ProcessGrid
from hybridnn.kernels.numpy_kernels import NUMPY
from training.stand_in_training import kernels_of, stand_in

CASE = Case("small", (4, 6, 3), 5, "classification", 3, 2)


def test_a_run_has_as_many_epochs_as_take_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gpu_training, "seconds_of", lambda run: 0.03 * run())
    found = long_enough(CASE, lambda case: lambda: asked.append(case) or case.epochs)
    assert found == replace(CASE, epochs=34)  # at 0.03 s each
    assert asked == [CASE, CASE], "one run before the timed one"


def test_large_networks_have_at_least_twenty_steps_in_an_epoch() -> None:
    assert all(case.minibatches >= 20 for case in GPU_CASES)


def test_no_run_hashes_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arrays: Any) -> bytes:
        raise AssertionError("samples are hashed")

    monkeypatch.setattr("hybridnn.training.cuda_graphs.digest_of", refuse)
    device = stand_in(ProcessGrid(), graphs=True)
    trainer, run = our_run(CASE, ProcessGrid(), as_rows=True, device=device)
    for _ in range(2):
        run()
    assert trainer.step == 2 * CASE.steps
    assert kernels_of(device).replays == [2 * CASE.steps - 1]
    with pytest.raises(AssertionError, match="hashed"):
        our_run(CASE, ProcessGrid(), device=device)[1]()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_pytorch_are_those_of_a_step(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, multiply = [], torch.matmul

    def counting(a: Any, b: Any, out: Any) -> Any:
        operations.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        assert {a.dtype, b.dtype, out.dtype} == {getattr(torch, dtype)}
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "matmul", counting)
    torch_products_of(CASE, "cpu", getattr(torch, dtype))()
    assert sum(operations) == CASE.steps * CASE.products_flops
    operations.clear()
    monkeypatch.setattr("benchmarks.gpu_kernels.PRODUCTS", ((2, 3, 4), (5, 6, 7)))
    for work in torch_products(dtype, "bf16", "cpu"):
        work.run()
        assert operations.pop() == work.amount


def test_products_of_rounded_factors_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = NUMPY.with_bfloat16_products()
    run = products_of(CASE, kernels)
    monkeypatch.setattr(kernels, "round_factor", None)
    factors: list[Any] = []
    multiply = kernels.matmul

    def noted(a: Any, b: Any, out: Any) -> None:
        factors.extend((a, b))
        multiply(a, b, out)

    monkeypatch.setattr(kernels, "matmul", noted)
    run()
    assert len(factors) == 2 * 4 * CASE.steps
    assert all((np.ascontiguousarray(factor).view(np.uint32) & 0xFFFF == 0).all() for factor in factors)
