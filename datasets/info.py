"""Catalogue entries of data sets: shapes, source, files and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["DatasetInfo", "Member", "RemoteFile", "Task"]

Task = Literal["regression", "classification"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class Member:
    """A file inside an archive that a loader reads.

    Parameters
    ----------
    path : str
        Path inside the archive, and below the folder of an unpacked archive.
    sha256 : str
        Checksum in hexadecimal.
    """

    path: str
    sha256: str


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Parameters
    ----------
    name : str
        File name on disk.
    url : str
        Source of the download; empty for a file that is part of the package.
    sha256 : str or None
        Checksum in hexadecimal; None if none is published for the archive, whose members are then verified.
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
    task : {'classification', 'regression'}
        Kind of the targets.
    features, outputs : int
        Inputs per sample; classes or target columns.
    train_samples, test_samples : int
        Sizes of the data splits; ``test_samples`` is 0 if the data set has no test split.
    licence, citation, source : str
        Terms of use, what to cite, and the page that describes the set.
    files : tuple of RemoteFile
        Empty for generated data.
    own_folder : bool
        True if another data set uses the same file names: files are then read only from a folder named after
        this one.
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
    files: tuple[RemoteFile, ...] = ()
    own_folder: bool = False
