"""Load any data set of the catalogue by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from hybridnn.errors import SettingError

from . import airfoil, cifar10, digits, ethylene, mnist
from . import synthetic as generated
from .catalogue import dataset_info
from .info import DatasetInfo
from .own_file import load_file
from .rows import Dataset, SubsetRows
from .synthetic import SyntheticSpec

__all__ = ["Variant", "describe_dataset", "load_dataset", "load_file"]

Variant = Literal["all", "paper"]


def load_dataset(
    name: str, *, variant: Variant = "all", rows: int | None = None, synthetic: SyntheticSpec | None = None
) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    name : str
        Its name in the catalogue.
    variant : {'all', 'paper'}
        ``"paper"`` uses what Laugier et al. (2018, Table 1) did: four of the five features of airfoil (see
        `airfoil.PAPER_FEATURES`). For ethylene that is the default, the first 700,000 rows.
    rows : int, optional
        Keep only the first so many training samples. For ethylene it may exceed the default, up to 4,178,504.
    synthetic : SyntheticSpec, optional
        What to generate, only for ``"synthetic"``.

    Raises
    ------
    DataError
        If there is no such data set, or its files are damaged or cannot be had.
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
    _require_rows(name, rows, dataset.train.samples)  # the file may be shorter than it should be
    return replace(dataset, train=SubsetRows(dataset.train, np.arange(rows)))


def describe_dataset(
    name: str, *, variant: Variant = "all", rows: int | None = None, synthetic: SyntheticSpec | None = None
) -> DatasetInfo:
    """Tell the shape of what `load_dataset` loads with the same options, without a look at any file.

    Raises
    ------
    DataError
        If there is no such data set.
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
