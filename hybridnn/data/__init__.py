"""Data sets: a catalogue with sources and checksums, loaders, generated data, splitting and standardization."""

from .dataset import Dataset, DatasetInfo, RemoteFile
from .download import fetch, is_fetched, locate
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
