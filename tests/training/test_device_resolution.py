"""Device and transport of a training, their description, and the end of their connections."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.errors import EnvironmentProblem
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import resolve_device
from training.stand_in_training import cupy_with_a_gpu, kernels_of, stand_in


def test_without_a_gpu_the_cpu_trains_and_says_why() -> None:
    def load() -> Any:
        raise EnvironmentProblem("a GPU was asked for: there is none here; ask for one")

    grid = ProcessGrid()
    device = resolve_device("auto", grid, load)
    assert (device.kind, device.why, device.transport) == ("cpu", "there is none here; ask for one", None)
    with pytest.raises(EnvironmentProblem, match="there is none here"):
        resolve_device(DeviceOptions("gpu"), grid, load)
    assert resolve_device(device, grid, load) is device


@pytest.mark.parametrize("name", ["auto", "gpu"])
def test_a_gpu_is_taken_with_the_requested_precision(name: str) -> None:
    precisions = []
    grid = ProcessGrid()

    def make(*, tf32: bool, progress: Any) -> Any:
        assert progress is None  # a single rank makes no progress for others
        precisions.append(tf32)
        return kernels_of(stand_in(grid))

    device = resolve_device(DeviceOptions(name, tf32=True, graphs=False), grid, cupy_with_a_gpu, make)
    assert (device.kind, device.why, device.transport) == ("gpu", "Imaginary, GPU 0 of 1", "staging")
    assert precisions == [True]
    assert device.capture is None
    for options in (DeviceOptions(name), DeviceOptions(name, graphs=True)):
        replayed = resolve_device(options, grid, cupy_with_a_gpu, make)
        assert replayed.why.endswith("steps replayed as CUDA graphs if samples are in GPU memory")
        assert replayed.capture is not None
        assert replayed.capture.required == (options.graphs is True)


@pytest.mark.mpi(ranks=[1, 2])
def test_several_ranks_load_all_kernels_before_cuda_starts(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that CUDA loads at their first launch may wait for NCCL; the user's setting stays."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "")  # so that it is restored after the test
    monkeypatch.delenv("CUDA_MODULE_LOADING")
    found: list[str | None] = []

    def load() -> Any:
        found.append(os.environ.get("CUDA_MODULE_LOADING"))
        raise EnvironmentProblem("a GPU was asked for: there is none here")

    resolve_device("cpu", ProcessGrid(comm), load)
    assert "CUDA_MODULE_LOADING" not in os.environ
    resolve_device("auto", ProcessGrid(comm), load)
    assert found == ["EAGER" if comm.size > 1 else None]
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    resolve_device("auto", ProcessGrid(comm), load)
    assert found[1:] == ["LAZY"]


@pytest.mark.mpi(ranks=[2])
def test_where_nccl_does_not_start_on_a_rank_arrays_are_staged_and_the_header_says_why(comm: MPI.Intracomm) -> None:
    def make(*, tf32: bool, progress: Any) -> Any:
        assert progress is not None  # the other rank may need this one while it waits for its device
        return kernels_of(stand_in(ProcessGrid()))

    problem = "NCCL cannot connect the ranks (KeyError: 6; NCCL_DEBUG=INFO makes it say more) on rank 1"
    for transport in ("auto", "nccl"):
        grid, cupy = ProcessGrid(comm), cupy_with_a_gpu(comm, f"bus {comm.rank}")
        cupy.cuda.nccl.failing = {1}
        options = DeviceOptions("gpu", transport, graphs=True)
        if transport == "nccl":
            with pytest.raises(EnvironmentProblem, match=r"'nccl': NCCL cannot connect .* on rank 1; 'staging'"):
                resolve_device(options, grid, lambda cupy=cupy: cupy, make)
            continue
        device = resolve_device(options, grid, lambda cupy=cupy: cupy, make)
        assert (device.transport, device.transport_why) == ("staging", problem)
        assert device.capture is None
        assert device.why.endswith("kernels launched one by one: graphs of several ranks need NCCL")


@pytest.mark.mpi(ranks=[2])
def test_a_trainer_ends_the_connections_of_a_device_that_it_chose(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (False, True):
        grid = ProcessGrid(comm)
        device = stand_in(grid, "nccl", comm)
        cupy = kernels_of(device)._cupy
        monkeypatch.setattr("hybridnn.training.trainer.resolve_device", lambda wanted, grid, device=device: device)
        trainer = Trainer(MLP([3, 2]), grid=grid, device=device if given else "gpu")
        trainer.fit(np.ones((9, 3)), np.zeros(9, int), epochs=1)
        trainer.free()
        assert cupy.ended == ([] if given else ["connection"])
        grid.disconnect()
        assert cupy.ended == ["connection"]
