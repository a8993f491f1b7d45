"""Samples cached on a device: copied once, and copied again when they have changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid, Trainer
from hybridnn.data import ArrayRows
from hybridnn.data.dataset import PixelRows
from reference.cases import Case, assert_arrays_close, data, make_trainer
from training.device_cases import EXACTLY
from training.stand_in_training import kernels_of, stand_in

ONE_EPOCH = Case(epochs=1)


def trainers(grid: ProcessGrid) -> tuple[Trainer, Trainer, list[int]]:
    """Trainers on the stand-in and on the CPU, and the number of elements of each copy to the device."""
    device = stand_in(grid)
    on_device, on_cpu = (make_trainer(ONE_EPOCH, grid, device=on) for on in (device, "cpu"))
    return on_device, on_cpu, kernels_of(device).brought


def copies(brought: list[int], size: int) -> int:
    """Number of copies of arrays of `size` elements since the last call."""
    found = brought.count(size)
    brought.clear()
    return found


def test_samples_are_copied_once_and_again_after_a_change() -> None:
    on_device, on_cpu, brought = trainers(ProcessGrid())
    x, y = data(ONE_EPOCH)
    x = x.copy()
    expected = []
    for change, times in ((None, 1), (None, 0), (0.5, 1), (None, 0)):
        if change is not None:
            x += change  # in the same memory
        for trainer in (on_device, on_cpu):
            trainer.fit(x, y, epochs=1)
        expected.append(times)
        assert copies(brought, x.size) == times
    on_device.fit(x.copy(), y.copy(), epochs=1)
    on_cpu.fit(x, y, epochs=1)
    assert copies(brought, x.size) == 0
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "fits", EXACTLY)


def test_exchanged_training_and_test_samples() -> None:
    on_device, on_cpu, brought = trainers(ProcessGrid())
    parts = [tuple(array[first::3] for array in data(Case(samples=90))) for first in range(3)]
    histories = []
    for trainer in (on_device, on_cpu):
        brought.clear()
        for train, test in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 0)):
            trainer.fit(*parts[train], epochs=1, validation=parts[test])
        histories.append([record.validation_loss for record in trainer.history.epochs])
        if trainer is on_device:
            # Two, and then one each time: what was trained on makes room for what was tested on.
            assert copies(brought, parts[0][0].size) == 6
    np.testing.assert_allclose(*histories, rtol=EXACTLY)
    on_device.evaluate(*parts[0])
    assert copies(brought, parts[0][0].size) == 0
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "places", EXACTLY)
    on_device.evaluate(*parts[2])
    on_device.evaluate(*parts[2])
    assert copies(brought, parts[2][0].size) == 2  # nothing is kept of what is evaluated by the way


def test_rows_of_a_data_set_are_identified_by_their_object() -> None:
    on_device, _, brought = trainers(ProcessGrid())
    x, y = data(ONE_EPOCH)
    pixels = PixelRows(np.clip(x * 99 + 99, 0, 255).astype(np.uint8), y, 255)
    reads: list[Any] = []

    class Rows(ArrayRows):
        def take(self, *arguments: Any) -> None:
            reads.append(arguments)
            super().take(*arguments)

    for rows in (pixels, Rows(x, y)):
        for times in (1, 0):
            on_device.fit(rows, epochs=1)
            assert copies(brought, x.size) == times
    assert len(reads) == 1


def test_freed_trainers_keep_no_samples() -> None:
    on_device, _, _ = trainers(ProcessGrid())
    on_device.fit(*data(ONE_EPOCH), epochs=1)
    kept = on_device.engine.samples._entries
    assert len(kept) == 1
    on_device.free()
    assert not kept


@pytest.mark.mpi(ranks=[2])
def test_all_batch_ranks_copy_if_the_samples_of_one_have_changed(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the samples differed between the rows that are compared.
    monkeypatch.setattr("hybridnn.training.rank_comparison.require_same_data", lambda *how: None)
    on_device, on_cpu, brought = trainers(ProcessGrid(comm, batch=2))
    x, y = data(ONE_EPOCH)
    shifted = x + comm.rank
    for samples, times in ((x, 1), (x, 0), (shifted, 1), (shifted, 0)):
        for trainer in (on_device, on_cpu):
            trainer.fit(samples, y, epochs=1)
        assert copies(brought, x.size) == times
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "shifted on one rank", EXACTLY)
