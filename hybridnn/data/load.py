"""The catalogue of data sets, and the function that loads one of them by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_choice

from . import airfoil, cifar10, digits, ethylene, mnist, synthetic
from .dataset import Dataset
from .info import DatasetInfo
from .rows import SubsetRows
from .synthetic import SyntheticSpec
from .synthetic import describe as describe_synthetic

Variant = Literal["all", "paper"]

ENTRIES = (
    digits.INFO,
    airfoil.INFO,
    ethylene.INFO,
    mnist.INFO,
    mnist.FASHION_INFO,
    cifar10.INFO,
    synthetic.INFO,
)
"""Every data set that a name can choose."""


def catalogue() -> Mapping[str, DatasetInfo]:
    """Return every known data set by name, the default (digits) first."""
    return MappingProxyType({info.name: info for info in ENTRIES})


def dataset_info(name: str) -> DatasetInfo:
    """Look up one data set; a `DataError` for an unknown name lists the nearest known ones, or all."""
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise DataError(f"data.name = {name!r}: no such data set; {hint}")


def load_dataset(
    name: str, *, variant: Variant = "all", rows: int | None = None, synthetic: SyntheticSpec | None = None
) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    name : str
        Key in the catalogue.
    variant : {'all', 'paper'}
        ``"paper"`` uses what Laugier et al. (2018, Table 1) did: four of the five features of airfoil. For ethylene
        that is the default, the first 700,000 rows.
    rows : int, optional
        Number of training samples to keep, from the first on. At most 4,178,504 for ethylene.
    synthetic : SyntheticSpec, optional
        Parameters of the generated data; only for ``"synthetic"``.

    Raises
    ------
    DataError
        If the name is unknown, or if files are damaged or cannot be downloaded.
    SettingError
        If an option does not fit the data set.
    """
    info = describe_dataset(name, variant=variant, rows=rows, synthetic=synthetic)
    dataset = info.load(info)
    if rows is None:
        return dataset
    _require_rows(name, rows, dataset.train.samples)  # the file may have fewer rows than expected
    return replace(dataset, train=SubsetRows(dataset.train, np.arange(rows)))


def describe_dataset(
    name: str, *, variant: Variant = "all", rows: int | None = None, synthetic: SyntheticSpec | None = None
) -> DatasetInfo:
    """Describe the data set that `load_dataset` loads with the same options, without reading any file."""
    info = dataset_info(name)
    require_choice("data.features", variant, ("all", "paper"))
    if variant == "paper":
        if info.paper_features is None:
            known = " and ".join(entry.name for entry in ENTRIES if entry.paper_features is not None)
            raise SettingError("data.features", variant, f"only {known} have it, not {name}")
        info = replace(info, features=info.paper_features)
    if synthetic is not None:
        if name != "synthetic":
            raise SettingError("data.name", name, "a synthetic specification goes only with 'synthetic'")
        info = describe_synthetic(synthetic)
    if rows is None:
        return info
    _require_rows(name, rows, info.available or info.train_samples)
    return replace(info, train_samples=rows)


def _require_rows(name: str, rows: int, available: int) -> None:
    if rows < 1:
        raise SettingError("data.rows", rows, "must be at least 1")
    if rows > available:
        raise SettingError("data.rows", rows, f"{name} has {available} training samples")
