"""A data set: its data splits, and the shapes of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rows import Rows, Task

if TYPE_CHECKING:
    from .table_encoding import TableEncoding


@dataclass(frozen=True)
class Dataset:
    """A data set: its data splits and the shapes of its samples.

    Parameters
    ----------
    name : str
        Name in the catalogue, or of the user's file.
    features, outputs : int
        Inputs per sample; classes or target columns.
    train, test : Rows
        Data splits; `test` is None if the data set has no test split.
    inputs, ignored : tuple of str
        Columns of a table: those that are the inputs, in order, and the unused ones.
    task_reason : str
        Property of a user's data from which the task follows.
    encoding : TableEncoding, optional
        How the columns of a table became inputs and targets.
    warnings : tuple of str
        What is probably not as the user meant it, one line each.
    """

    name: str
    task: Task
    features: int
    outputs: int
    train: Rows
    test: Rows | None
    inputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    task_reason: str = ""
    encoding: TableEncoding | None = None
    warnings: tuple[str, ...] = ()

    def class_name(self, label: int) -> str:
        """Name of the class with this label: its text in a table, else the label itself."""
        return self.encoding.classes[label] if self.encoding is not None and self.encoding.classes else str(label)
