"""Choice of device and transport, its description and its errors, and the end of its connections."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import EnvironmentProblem, HybridnnError, SettingError
from hybridnn.gpu import cupy_loading, setup
from hybridnn.gpu.device_choice import choose_device, choose_device_together
from hybridnn.gpu.setup import TransportChoice, choose_transport, cuda_support
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import resolve_device
from reference.emulated_device import EmulatedCupy
from reference.emulated_streams import CudaError
from training.emulated_training import cupy_of, emulated


def cupy_with(places: list[str], *, nccl: bool = True, answers: bool = True) -> Any:
    """An emulated CuPy with one GPU at each PCI bus ID of `places`."""
    cupy: Any = EmulatedCupy()
    current = cupy.chosen = [0]

    def memory() -> tuple[int, int]:
        if not answers:
            raise CudaError("cudaErrorDevicesUnavailable: all CUDA-capable devices are busy or unavailable")
        return 1, 2

    more = {"getDeviceCount": lambda: len(places), "getDevice": lambda: current[0], "memGetInfo": memory}
    vars(cupy.cuda.runtime).update(more, deviceGetPCIBusId=lambda index: places[index])
    cupy.cuda.Device = lambda index: SimpleNamespace(use=lambda: current.__setitem__(0, index))
    cupy.cuda.nccl = SimpleNamespace(available=nccl)
    return cupy


def missing() -> Any:
    raise EnvironmentProblem("a GPU was asked for: CuPy is not installed; pip install 'hybridnn[cuda13]'")


def test_the_ranks_of_a_node_get_its_gpus_in_turn() -> None:
    cupy = cupy_with(["a", "b", "c"])
    for node_rank, index in enumerate([0, 1, 2, 0, 1]):
        choice = choose_device("gpu", node_rank, lambda: cupy)
        assert (choice.kind, choice.index, choice.why) == ("gpu", index, f"Imaginary, GPU {index} of 3")
        assert (choice.cupy, cupy.chosen) == (cupy, [index])


def test_auto_is_the_cpu_without_a_gpu_and_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_loading, "find_spec", lambda name: None)
    choice = choose_device("auto", 0)
    assert (choice.kind, choice.index, choice.cupy) == ("cpu", -1, None)
    assert choice.why.startswith("CuPy is not installed; ")
    assert choose_device("auto", 0, lambda: cupy_with(["a"])).kind == "gpu"
    silent = choose_device("auto", 0, lambda: cupy_with(["a"], answers=False))
    assert silent.why.startswith("GPU 0 does not answer (cudaErrorDevicesUnavailable")


def test_a_requested_gpu_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_loading, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"a GPU was asked for: CuPy is not installed; .*'hybridnn\[cuda1"):
        choose_device("gpu", 0)
    with pytest.raises(EnvironmentProblem, match="GPU 0 does not answer"):
        choose_device("gpu", 0, lambda: cupy_with(["a"], answers=False))


@pytest.mark.mpi(ranks=[2, 3])
def test_all_ranks_compute_on_the_same_kind_of_device(comm: MPI.Intracomm) -> None:
    world, last = ProcessGrid(comm).world, comm.size - 1

    def load() -> Any:
        return missing() if comm.rank == last else cupy_with(["a"])

    choice = choose_device_together(world, "auto", comm.rank, load)
    assert choice.kind == "cpu"
    reason = "CuPy is not installed; pip install 'hybridnn[cuda13]'"
    assert choice.why == (reason if comm.rank == last else f"rank {last}: {reason}")
    assert choose_device_together(world, "auto", comm.rank, lambda: cupy_with(["a"])).kind == "gpu"
    with pytest.raises(HybridnnError, match="CuPy is not installed"):
        choose_device_together(world, "gpu", comm.rank, load)


@pytest.mark.mpi(ranks=[2, 3])
def test_nccl_if_every_rank_has_its_own_gpu(comm: MPI.Intracomm) -> None:
    grid, last = ProcessGrid(comm), comm.size - 1
    own, shared = cupy_with([f"bus {comm.rank}"]), cupy_with(["bus 0" if comm.rank == last else f"bus {comm.rank}"])
    without = cupy_with([f"bus {comm.rank}"], nccl=comm.rank != last)
    for name in ("auto", "nccl"):
        assert choose_transport(grid, name, own) == TransportChoice("nccl", "every rank has a GPU of its own")
    problems = [
        (shared, f"ranks 0, {last} share a GPU"),
        (without, f"CuPy finds no NCCL (pip install nvidia-nccl-cu12) on rank {last}"),
    ]
    for cupy, problem in problems:
        assert choose_transport(grid, "auto", cupy) == TransportChoice("staging", problem)
        with pytest.raises(EnvironmentProblem) as raised:
            choose_transport(grid, "nccl", cupy)
        assert str(raised.value) == f"device.transport = 'nccl': {problem}; 'staging' always works"


@pytest.mark.mpi(ranks=[2])
def test_device_aware_mpi_as_requested_unless_the_library_denies_it(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, cupy = ProcessGrid(comm), cupy_with([f"bus {comm.rank}"])
    for said in (True, None):
        monkeypatch.setattr(setup, "cuda_support", lambda said=said: said)
        assert choose_transport(grid, "mpi", cupy) == TransportChoice("mpi", "as requested")
    monkeypatch.setattr(setup, "cuda_support", lambda: comm.rank == 0)
    with pytest.raises(EnvironmentProblem, match=r"'mpi': this Open MPI was built without support of CUDA .* rank 1"):
        choose_transport(grid, "mpi", cupy)
    assert choose_transport(grid, "staging", cupy).why == "as requested"
    assert choose_transport(grid, "auto", cupy_with(["a"])).name == "staging"


def test_open_mpi_says_whether_it_supports_cuda() -> None:
    library = import_mpi().Get_library_version()
    if library.startswith("Open MPI"):
        assert cuda_support() in (True, False)
    assert cuda_support("libno-such-mpi.so") is None


def test_without_a_gpu_the_cpu_trains_and_says_why() -> None:
    def load() -> Any:
        raise EnvironmentProblem("a GPU was asked for: there is none here; ask for one")

    grid = ProcessGrid()
    device = resolve_device("auto", grid, load)
    assert (device.kind, device.why, device.transport) == ("cpu", "there is none here; ask for one", None)
    with pytest.raises(EnvironmentProblem, match="there is none here"):
        resolve_device(DeviceOptions("gpu"), grid, load)
    assert resolve_device(device, grid, load) is device


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("what", ["Out of memory allocating 33,554,432 bytes", "cudaErrorMemoryAllocation", "cuBLAS"])
def test_a_gpu_that_does_not_start_on_a_rank_is_one_line_on_all(comm: MPI.Intracomm, what: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError(f"{what}\nmore")

    grid, cupy, last = ProcessGrid(comm), EmulatedCupy(free=1), comm.size - 1
    if comm.rank == last:
        cupy.failing = {"cublasCreate_v2": 3} if what == "cuBLAS" else {}
        vars(cupy.cuda if what.startswith("cuda") else cupy).update(
            {} if what == "cuBLAS" else {"empty": fail, "Stream": fail}
        )
    device = resolve_device("auto", grid, lambda: cupy, cupy.kernels)
    error = what.replace("cuBLAS", "cublasCreate failed with status 3, out of memory")
    memory = "1 of its 1,099,511,627,776 bytes are free"
    line = f"the GPU does not start ({error}; {memory}); {setup.OTHER_PROGRAMS} on rank {last}"
    assert (device.kind, device.why) == ("cpu", line)
    with pytest.raises(EnvironmentProblem) as raised:
        resolve_device("gpu", grid, lambda: cupy, cupy.kernels)
    assert str(raised.value) == line


def test_class_weights_choose_the_cpu() -> None:
    grid = ProcessGrid()
    device = resolve_device("auto", grid, EmulatedCupy, class_weight="balanced")
    assert (device.kind, device.why) == ("cpu", "training.class_weight needs the CPU")
    with pytest.raises(SettingError, match=r"training.class_weight = 'balanced': needs the CPU: device.name = 'cpu'"):
        Trainer(MLP([3, 2]), grid=grid, device=emulated(grid), class_weight="balanced")


@pytest.mark.parametrize("name", ["auto", "gpu"])
def test_a_gpu_is_taken_with_the_requested_precision(name: str) -> None:
    precisions = []
    grid = ProcessGrid()

    def make(*, tf32: bool, progress: Any) -> Any:
        assert progress is None  # a single rank makes no progress for others
        precisions.append(tf32)
        return EmulatedCupy().kernels()

    device = resolve_device(DeviceOptions(name, tf32=True, graphs=False), grid, EmulatedCupy, make)
    assert (device.kind, device.why, device.transport) == ("gpu", "Imaginary, GPU 0 of 1", "staging")
    assert precisions == [True]
    assert device.capture is None
    for options in (DeviceOptions(name), DeviceOptions(name, graphs=True)):
        replayed = resolve_device(options, grid, EmulatedCupy, make)
        assert replayed.why.endswith("steps replayed as CUDA graphs if samples are in GPU memory")
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
        return EmulatedCupy().kernels()

    problem = "NCCL cannot connect the ranks (KeyError: 6; NCCL_DEBUG=INFO makes it say more) on rank 1"
    for transport in ("auto", "nccl"):
        grid, cupy = ProcessGrid(comm), EmulatedCupy(comm, place=f"bus {comm.rank}")
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
        device = emulated(grid, "nccl", comm)
        cupy = cupy_of(device)
        monkeypatch.setattr("hybridnn.training.trainer.resolve_device", lambda wanted, grid, device=device, **_: device)
        trainer = Trainer(MLP([3, 2]), grid=grid, device=device if given else "gpu")
        trainer.fit(np.ones((9, 3)), np.zeros(9, int), epochs=1)
        trainer.free()
        assert cupy.ended == ([] if given else ["connection"])
        grid.disconnect()
        assert cupy.ended == ["connection"]
