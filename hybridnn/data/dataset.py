"""A data set: its samples, and the entry of the catalogue that describes where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .rows import Rows, Task, check_indices, gather

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


@dataclass(frozen=True)
class Member:
    """A file inside an archive that a loader reads; `path` is also that below the folder of an unpacked archive."""

    path: str
    sha256: str


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Parameters
    ----------
    url : str
        Source of the download; empty for a file that is part of the package.
    sha256 : str or None
        In hexadecimal; None if none is published for the archive, whose members are then verified.
    size : int or None
        Bytes; None if unknown.
    members : tuple of Member
        Files that are read from an archive.
    """

    name: str
    url: str
    sha256: str | None
    size: int | None
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class DatasetInfo:
    """A catalogue entry.

    Parameters
    ----------
    name, title, description : str
        Key in the catalogue, title, and one sentence.
    features, outputs : int
        Inputs per sample; classes or target columns.
    train_samples, test_samples : int
        Sizes of the data splits; ``test_samples`` is 0 if the data set has no test split.
    licence, citation, source : str
        Terms of use, what to cite, and the page that describes the set.
    load : callable
        Loads the data as this entry, or a copy with other `features` or `train_samples`, describes them.
    files : tuple of RemoteFile
        Empty for generated data.
    own_folder : bool
        True if another data set uses the same file names: files are then read only from a folder named after
        this one.
    folder : str
        Name of that folder; empty: the name of the data set.
    available : int, optional
        Samples in the files, if these are more than `train_samples`.
    """

    name: str
    title: str
    task: Task
    features: int
    outputs: int
    train_samples: int
    test_samples: int
    description: str
    licence: str
    citation: str
    source: str
    load: Callable[[DatasetInfo], Dataset] = field(repr=False)
    files: tuple[RemoteFile, ...] = ()
    own_folder: bool = False
    folder: str = ""
    available: int | None = None

    def dataset(self, train: Rows, test: Rows | None = None) -> Dataset:
        """The data set of this entry with these samples."""
        return Dataset(self.name, self.task, self.features, self.outputs, train, test)


class PixelRows:
    """Images held as bytes and scaled to [0, 1] when they are taken.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (samples, features)
        Grey values or colour components.
    labels : ndarray of integers, shape (samples,)
    white : int
        Value that is scaled to 1.
    """

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[Any], white: int) -> None:
        self.pixels, self.labels, self.white = pixels, labels, white
        self.samples, self.features = pixels.shape
        self.targets_shape = ()

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; `x` must be of a floating dtype."""
        check_indices(indices, self.samples)
        if x is not None:
            np.divide(self.pixels[indices], x.dtype.type(self.white), out=x)
        gather(self.labels, indices, y)
