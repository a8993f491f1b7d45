"""Data sets: a catalogue with sources and checksums, loaders, generated data, splitting and standardization."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arrays import as_rows
    from .download import fetch, is_fetched, locate
    from .info import DatasetInfo, RemoteFile, Task
    from .load import Variant, catalogue, dataset_info, describe_dataset, load_dataset
    from .preparation import StandardizedRows, Standardizer, count_tests, split
    from .rows import ArrayRows, Dataset, Rows, SubsetRows
    from .synthetic import SyntheticRows, SyntheticSpec
    from .user_file import load_file

__all__ = [
    "ArrayRows",
    "Dataset",
    "DatasetInfo",
    "RemoteFile",
    "Rows",
    "StandardizedRows",
    "Standardizer",
    "SubsetRows",
    "SyntheticRows",
    "SyntheticSpec",
    "Task",
    "Variant",
    "as_rows",
    "catalogue",
    "count_tests",
    "dataset_info",
    "describe_dataset",
    "fetch",
    "is_fetched",
    "load_dataset",
    "load_file",
    "locate",
    "split",
]

_HOME = {
    "ArrayRows": "rows",
    "Dataset": "rows",
    "DatasetInfo": "info",
    "RemoteFile": "info",
    "Rows": "rows",
    "StandardizedRows": "preparation",
    "Standardizer": "preparation",
    "SubsetRows": "rows",
    "SyntheticRows": "synthetic",
    "SyntheticSpec": "synthetic",
    "Task": "info",
    "Variant": "load",
    "as_rows": "arrays",
    "catalogue": "load",
    "count_tests": "preparation",
    "dataset_info": "load",
    "describe_dataset": "load",
    "fetch": "download",
    "is_fetched": "download",
    "load_dataset": "load",
    "load_file": "user_file",
    "locate": "download",
    "split": "preparation",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
