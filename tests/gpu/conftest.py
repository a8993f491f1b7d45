"""The emulation of CUDA, whose compiled kernels are kept in pytest's cache: compiling takes several seconds."""

import pytest

from gpu.cuda_emulator import Emulator


@pytest.fixture(scope="session")
def emulator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    cache = getattr(pytestconfig, "cache", None)  # it may be switched off
    return Emulator(tmp_path_factory.mktemp("cuda") if cache is None else cache.mkdir("cuda-emulation"))
