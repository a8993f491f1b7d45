"""BLAS without the package `scipy.linalg`, and with it where its extension module is not where it was."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_EXTENSION = """
import importlib.machinery
from hybridnn.nn import kernels
loaded_alone = kernels._BLAS.__name__
class Nothing:
    find_spec = staticmethod(lambda *_: None)
kernels.PathFinder = Nothing
other = kernels.load_blas()
assert (loaded_alone, other.__name__) == ("scipy.linalg._fblas", "scipy.linalg.blas"), (loaded_alone, other)
assert (other.saxpy, other.daxpy) == (kernels._BLAS.saxpy, kernels._BLAS.daxpy)
import scipy.linalg
assert scipy.linalg._fblas.daxpy is kernels._BLAS.daxpy
assert scipy.linalg.norm([3.0, 4.0]) == 5
kernels.PathFinder = importlib.machinery.PathFinder
assert kernels.load_blas() is other
"""


def test_routines_of_blas_are_those_of_the_public_module_which_is_taken_where_the_extension_is_not_found() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
