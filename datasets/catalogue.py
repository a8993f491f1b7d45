"""The data sets by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from hybridnn.errors import DataError

from . import airfoil, cifar10, digits, ethylene, mnist, synthetic
from .info import DatasetInfo

__all__ = ["catalogue", "dataset_info"]


def catalogue() -> Mapping[str, DatasetInfo]:
    """Return every known data set by name, the default one (digits) first."""
    infos = (
        digits.INFO,
        airfoil.INFO,
        ethylene.INFO,
        mnist.INFO,
        mnist.FASHION_INFO,
        cifar10.INFO,
        synthetic.INFO,
    )
    return MappingProxyType({info.name: info for info in infos})


def dataset_info(name: str) -> DatasetInfo:
    """Look up one data set.

    Raises
    ------
    DataError
        If there is no such set; the message names the nearest known names, or all of them.
    """
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise DataError(f"data.name = {name!r}: no such data set; {hint}")
