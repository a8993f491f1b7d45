"""Routines of BLAS that NumPy does not offer: SciPy's, loaded without the rest of `scipy.linalg`.

The package imports much of SciPy, and parts of NumPy that programs rarely need: a fifth of a second of processor time
on every rank. Its extension module alone loads in a tenth of that, and has the same functions.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

PACKAGE = "scipy.linalg"
EXTENSION = f"{PACKAGE}._fblas"
ROUTINES = ("saxpy", "daxpy", "sgemm", "dgemm", "sgemv", "dgemv")


def load_blas() -> ModuleType:
    """The module with `ROUTINES`: the extension by itself, or `scipy.linalg.blas` where that is not possible or loaded.

    SciPy documents only the latter: a version with another layout of files is only slower to load.
    """
    if PACKAGE not in sys.modules:
        try:
            return _extension()
        except (ImportError, AttributeError):  # another layout, or libraries that only the package's import finds
            pass
    from scipy.linalg import blas

    public: ModuleType = blas
    return public


def _extension() -> ModuleType:
    """Load the extension; raise `ImportError` or `AttributeError` if it is not there, or not what is expected."""
    scipy = find_spec("scipy")  # does not import it
    folders = [] if scipy is None else scipy.submodule_search_locations or []
    found = PathFinder.find_spec(EXTENSION, [str(Path(folder, "linalg")) for folder in folders])
    if found is None or not isinstance(found.loader, ExtensionFileLoader):
        raise ImportError(f"{EXTENSION} is not an extension module in a folder of SciPy")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    # Such a module enters itself. A later import of the package then has to find it anew, to become its attribute.
    sys.modules.pop(EXTENSION, None)
    for name in ROUTINES:
        getattr(module, name)
    return module


_BLAS = load_blas()

saxpy, daxpy = _BLAS.saxpy, _BLAS.daxpy
sgemm, dgemm = _BLAS.sgemm, _BLAS.dgemm
sgemv, dgemv = _BLAS.sgemv, _BLAS.dgemv
