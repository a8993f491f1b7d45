"""Data sets: a catalogue with sources and checksums, loaders, generated data, and preparation for training."""

from __future__ import annotations

from .arrays import as_rows
from .catalogue import catalogue, dataset_info
from .download import fetch, is_fetched, locate
from .info import DatasetInfo, RemoteFile, Task
from .load import Variant, describe_dataset, load_dataset, load_file
from .preparation import Standardizer, count_tests, split, standardized
from .rows import ArrayRows, Dataset, Rows, SubsetRows
from .synthetic import SyntheticRows, SyntheticSpec

__all__ = [
    "ArrayRows",
    "Dataset",
    "DatasetInfo",
    "RemoteFile",
    "Rows",
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
    "standardized",
]
