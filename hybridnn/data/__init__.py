"""Data sets: a catalogue with sources and checksums, loaders, generated data, splitting and standardization."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset
    from .download import fetch, is_fetched, locate
    from .info import DatasetInfo, RemoteFile
    from .load import catalogue, dataset_info, describe_dataset, load_dataset
    from .preparation import StandardizedRows, Standardizer, count_split, split, split_indices
    from .rows import ArrayRows, Rows, SubsetRows, Task, as_rows
    from .synthetic import SyntheticRows, SyntheticSpec
    from .table_encoding import TableEncoding
    from .table_file import TableOptions
    from .user_file import load_file, load_frame

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
    "split_indices",
]

_HOME = {
    name: module
    for module, names in {
        "dataset": ("Dataset",),
        "download": ("fetch", "is_fetched", "locate"),
        "info": ("DatasetInfo", "RemoteFile"),
        "load": ("catalogue", "dataset_info", "describe_dataset", "load_dataset"),
        "preparation": ("StandardizedRows", "Standardizer", "count_split", "split", "split_indices"),
        "rows": ("ArrayRows", "Rows", "SubsetRows", "Task", "as_rows"),
        "synthetic": ("SyntheticRows", "SyntheticSpec"),
        "table_encoding": ("TableEncoding",),
        "table_file": ("TableOptions",),
        "user_file": ("load_file", "load_frame"),
    }.items()
    for name in names
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
