"""The products that are timed alone are those of the step, for any split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import limits
from benchmarks.cases import Case, our_run
from benchmarks.limits import compare_with_limits, products_in, products_of, update_bytes
from hybridnn import ProcessGrid
from hybridnn.kernels import numpy_kernels
from hybridnn.training.config import Pipelining

if TYPE_CHECKING:
    from mpi4py import MPI

CASE = Case("6-8-12-4", (6, 8, 12, 4), 16, "regression", 2, 1)
LARGE = Case("6-256-256-4", (6, 256, 256, 4), 16, "regression", 2, 1)
"""Large enough to be trained without gradients: products are added to the velocity."""

WAYS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "batch": ({}, {}),
    "columns": ({"batch": 1, "model": 2}, {"model_split": "columns"}),
    "alternating": ({"batch": 1, "model": 2}, {"model_split": "alternating"}),
    "gpipe": ({"batch": 1, "pipeline": 2}, {"pipelining": Pipelining("gpipe", microbatches=4)}),
}

Product = tuple[str, tuple[tuple[int, ...], ...], tuple[bool, ...]]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Every product that is taken: its kernel, the shapes of its arrays, and which of them lie row by row."""
    found: list[Product] = []

    def watched(name: str, multiply: Callable[..., None]) -> Callable[..., None]:
        def watch(a: Any, b: Any, out: Any, *others: Any) -> None:
            arrays = a, b, out
            found.append((name, tuple(x.shape for x in arrays), tuple(x.flags.c_contiguous for x in arrays)))
            multiply(a, b, out, *others)

        return watch

    for name in ("matmul", "matmul_transposed", "add_product"):
        monkeypatch.setattr(numpy_kernels, name, watched(name, getattr(numpy_kernels, name)))
    return found


def operations(products: list[Product]) -> int:
    """Multiplications and additions, from the shapes."""
    total = 0
    for name, (a, b, _), _ in products:
        rows, inner = a[::-1] if name == "matmul_transposed" else a
        total += 2 * rows * inner * b[1]
    return total


def test_on_one_rank_they_are_what_the_shapes_of_the_network_say(products: list[Product]) -> None:
    trainer, ours = our_run(CASE, ProcessGrid())
    alone = products_in(ours).run
    of_the_run = products.copy()
    before = trainer.weights() | {f"gradient of {name}": array for name, array in trainer.gradients().items()}
    products.clear()
    alone()
    assert products == of_the_run
    assert operations(products) == CASE.steps * CASE.products_flops
    after = trainer.weights() | {f"gradient of {name}": array for name, array in trainer.gradients().items()}
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.mpi(ranks=[1, 2])
def test_without_gradients_too(comm: MPI.Intracomm, products: list[Product]) -> None:
    trainer, ours = our_run(LARGE, ProcessGrid(comm))
    alone = products_in(ours)
    assert alone.are_added
    of_the_run = products.copy()
    before = trainer.optimizer_slots()["velocity"]
    products.clear()
    alone.run()
    assert products == of_the_run
    assert comm.allreduce(operations(products)) == LARGE.steps * LARGE.products_flops
    for name, array in trainer.optimizer_slots()["velocity"].items():
        np.testing.assert_array_equal(array, before[name])


def test_they_agree_with_products_made_from_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[tuple[int, ...], ...]] = []

    def note(a: Any, b: Any, out: Any) -> None:
        shapes.append((a.shape, b.shape, out.shape))
        out.fill(0)  # what lies in new memory may train to a loss that is not finite

    monkeypatch.setattr(np, "matmul", note)
    _, ours = our_run(CASE, ProcessGrid())
    alone, of_the_sizes = products_in(ours).run, products_of(CASE)
    shapes.clear()
    alone()
    noted = shapes.copy()
    shapes.clear()
    of_the_sizes()
    assert len(noted) == CASE.steps * (3 + 3 + 2)
    assert sorted(noted) == sorted(shapes)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("way", WAYS)
def test_the_ranks_together_multiply_as_much_as_one(comm: MPI.Intracomm, way: str, products: list[Product]) -> None:
    grid, settings = WAYS[way]
    _, ours = our_run(CASE, ProcessGrid(comm, **grid), **settings)
    alone = products_in(ours).run
    of_the_run = products.copy()
    products.clear()
    alone()
    assert products == of_the_run
    assert comm.allreduce(operations(products)) == CASE.steps * CASE.products_flops


@pytest.mark.mpi(ranks=[2])
def test_shares_are_of_all_ranks_together(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says what is written here."""
    seconds = 2.0, (0.5, 1.5)[comm.rank]  # a run, and its products alone

    class Turns:
        ours = (seconds[0], seconds[0])
        ratios = (seconds[1] / seconds[0],)

    monkeypatch.setattr(limits, "products_in", lambda ours: limits.Products(ours, are_added=False))
    monkeypatch.setattr(limits, "alternate", lambda *arguments: Turns)
    monkeypatch.setattr(limits, "copy_bandwidth", lambda before: 1000.0 * (1 + comm.rank))
    found = compare_with_limits(CASE, lambda: None, 2, comm, gradients=2)
    parameters = 7 * 8 + 9 * 12 + 13 * 4
    assert found["products_share"] == pytest.approx((0.25 + 0.75) / 2)
    assert found["copy_bytes_per_second"] == 3000.0
    # Two gradients are read, velocity and weights are read and written: six times four bytes, in one second for a step.
    assert found["update_share"] == pytest.approx(24 * parameters / 3000.0)
    assert found["gflops"] == pytest.approx(CASE.products_flops / 1e9)
    assert update_bytes(CASE) == 20 * parameters
    assert update_bytes(CASE, 0) == 12 * parameters  # weights follow the velocity
