"""Missing compilers: tests are skipped, or fail in CI, where all compilers must be installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["without_compiler"]


def without_compiler(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"the CUDA kernels are not tested in CI: {reason}")
    pytest.skip(f"THE CUDA KERNELS ARE NOT COMPILED: {reason}")
