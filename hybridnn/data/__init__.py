"""Data sets: a catalogue with sources and checksums, loaders, generated data, splitting and standardization."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .rows import ArrayRows, Rows, Task, as_rows

if TYPE_CHECKING:
    from .dataset import Dataset, DatasetInfo, RemoteFile
    from .download import fetch, is_fetched, locate
    from .loaders import catalogue, dataset_info, describe_dataset, load_dataset
    from .preparation import (
        StandardizedRows,
        Standardizer,
        SubsetRows,
        count_split,
        split,
        split_dataset,
        split_indices,
    )
    from .synthetic import SyntheticRows, SyntheticSpec
    from .table_encoding import TableEncoding
    from .table_file import TableOptions
    from .table_fitting import load_file, load_frame

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
    "TableEncoding",
    "TableOptions",
    "Task",
    "as_rows",
    "catalogue",
    "count_split",
    "dataset_info",
    "describe_dataset",
    "fetch",
    "is_fetched",
    "load_dataset",
    "load_file",
    "load_frame",
    "locate",
    "split",
    "split_dataset",
    "split_indices",
]

_HOME = {
    "Dataset DatasetInfo RemoteFile": "dataset",
    "fetch is_fetched locate": "download",
    "catalogue dataset_info describe_dataset load_dataset": "loaders",
    "StandardizedRows Standardizer SubsetRows count_split split split_dataset split_indices": "preparation",
    "SyntheticRows SyntheticSpec": "synthetic",
    "TableEncoding": "table_encoding",
    "TableOptions": "table_file",
    "load_file load_frame": "table_fitting",
}
"""Modules of the names that a training on arrays does not need."""


def __getattr__(name: str) -> Any:
    """Load such a name when it is first used."""
    for names, module in _HOME.items():
        if name in names.split():
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
