"""Data sets: a catalogue with sources and checksums, loaders, generated data, splitting and standardization."""

from __future__ import annotations

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
