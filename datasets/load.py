"""The catalogue of data sets, and the function that loads one of them by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from hybridnn.errors import DataError, SettingError

from . import airfoil, cifar10, digits, ethylene, mnist
from . import synthetic as generated
from .info import DatasetInfo
from .rows import Dataset, SubsetRows
from .synthetic import SyntheticSpec

__all__ = ["Variant", "catalogue", "dataset_info", "describe_dataset", "load_dataset"]

Variant = Literal["all", "paper"]


def catalogue() -> Mapping[str, DatasetInfo]:
    """Return every known data set by name, the default (digits) first."""
    infos = (
        digits.INFO,
        airfoil.INFO,
        ethylene.INFO,
        mnist.INFO,
        mnist.FASHION_INFO,
        cifar10.INFO,
        generated.INFO,
    )
    return MappingProxyType({info.name: info for info in infos})


def dataset_info(name: str) -> DatasetInfo:
    """Look up one data set.

    Raises
    ------
    DataError
        If the name is unknown; the message lists the nearest known names, or all of them.
    """
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
        ``"paper"`` uses what Laugier et al. (2018, Table 1) did: four of the five features of airfoil (see
        `airfoil.PAPER_FEATURES`). For ethylene that is the default, the first 700,000 rows.
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
    loaders: dict[str, Callable[[], Dataset]] = {
        "digits": digits.load,
        "airfoil": lambda: airfoil.load(info.features),
        "ethylene": lambda: ethylene.load(info.train_samples),
        "mnist": mnist.load,
        "fashion-mnist": lambda: mnist.load(mnist.FASHION_INFO),
        "cifar10": cifar10.load,
        "synthetic": lambda: generated.load(synthetic),
    }
    dataset = loaders[name]()
    if rows is None:
        return dataset
    _require_rows(name, rows, dataset.train.samples)  # the file may have fewer rows than expected
    return replace(dataset, train=SubsetRows(dataset.train, np.arange(rows)))


def describe_dataset(
    name: str, *, variant: Variant = "all", rows: int | None = None, synthetic: SyntheticSpec | None = None
) -> DatasetInfo:
    """Describe the data set that `load_dataset` loads with the same options, without reading any file.

    Raises
    ------
    DataError
        If the name is unknown.
    SettingError
        If an option does not fit the data set.
    """
    info = dataset_info(name)
    if variant not in ("all", "paper"):
        raise SettingError("data.features", variant, "must be 'all' or 'paper'")
    if variant == "paper" and name not in ("airfoil", "ethylene"):
        raise SettingError("data.features", variant, f"only airfoil and ethylene have it, not {name}")
    if synthetic is not None and name != "synthetic":
        raise SettingError("data.name", name, "a synthetic specification goes only with 'synthetic'")
    if synthetic is not None:
        info = generated.describe(synthetic)
    elif name == "airfoil" and variant == "paper":
        info = replace(info, features=airfoil.PAPER_FEATURES)
    if rows is None:
        return info
    _require_rows(name, rows, ethylene.ROWS if name == "ethylene" else info.train_samples)
    return replace(info, train_samples=rows)


def _require_rows(name: str, rows: int, available: int) -> None:
    if rows < 1:
        raise SettingError("data.rows", rows, "must be at least 1")
    if rows > available:
        raise SettingError("data.rows", rows, f"{name} has {available} training samples")
