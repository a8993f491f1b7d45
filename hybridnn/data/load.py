"""The catalogue of data sets, and the function that loads one of them by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_whole
from hybridnn.utils.files import memory_bytes

from . import loaders, synthetic
from .dataset import Dataset, DatasetInfo
from .preparation import SubsetRows
from .synthetic import SyntheticSpec
from .synthetic import describe as describe_synthetic

ORDER_BYTES = 8  # of a sample in the shuffled order of an epoch

ENTRIES = (
    loaders.DIGITS,
    loaders.AIRFOIL,
    loaders.AIRFOIL_CONDITIONS,
    loaders.ETHYLENE,
    loaders.MNIST,
    loaders.FASHION_MNIST,
    loaders.CIFAR10,
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


def load_dataset(name: str, *, rows: int | None = None, synthetic: SyntheticSpec | None = None) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    name : str
        Key in the catalogue.
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
    info = describe_dataset(name, rows=rows, synthetic=synthetic)
    if rows is not None and rows > (most := memory_bytes() // ORDER_BYTES):
        raise SettingError("data.rows", rows, f"must be at most {most:,}, whose order fits the memory of this machine")
    dataset = info.load(info)
    if rows is None or rows == dataset.train.samples:
        return dataset
    _require_rows(name, rows, dataset.train.samples)  # the file may have fewer rows than expected
    return replace(dataset, train=SubsetRows(dataset.train, np.arange(rows)))


def describe_dataset(name: str, *, rows: int | None = None, synthetic: SyntheticSpec | None = None) -> DatasetInfo:
    """Describe the data set that `load_dataset` loads with the same options, without reading any file."""
    info = dataset_info(name)
    if synthetic is not None:
        if name != "synthetic":
            raise SettingError("data.name", name, "a synthetic specification goes only with 'synthetic'")
        info = describe_synthetic(synthetic)
    if rows is None:
        return info
    _require_rows(name, rows, info.available or info.train_samples)
    return replace(info, train_samples=rows)


def _require_rows(name: str, rows: int, available: int) -> None:
    if require_whole("data.rows", rows, 1) > available:
        raise SettingError("data.rows", rows, f"{name} has {available} training samples")
