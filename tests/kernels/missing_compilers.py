"""What to do where a compiler is missing: skip on a machine of somebody's own, fail where all was to be installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["without_compiler"]


def without_compiler(reason: str) -> NoReturn:
    """Skip the test with a reason that stands out, or in CI fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"CI proves nothing of the CUDA kernels so: {reason}")
    pytest.skip(f"THE CUDA KERNELS ARE NOT COMPILED: {reason}")
