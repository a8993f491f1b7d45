"""What is known of a data set: its shape, its source and how its files are recognized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DatasetInfo", "Member", "RemoteFile", "Task"]

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Member:
    """A file inside an archive that a loader reads.

    Parameters
    ----------
    path : str
        Its path inside the archive, and so below the folder where someone unpacked it.
    sha256 : str
        Its checksum, in hexadecimal.
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
        Where to download it; empty when the file comes with the package.
    sha256 : str or None
        Checksum in hexadecimal. None when no checksum of the archive is published: then those of its members decide.
    size : int or None
        Bytes; None when not known.
    members : tuple of Member
        For an archive, the files to read out of it.
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
        The key in the catalogue, a title and one sentence.
    task : {'classification', 'regression'}
        What is learned.
    features, outputs : int
        Inputs per sample; classes or target columns.
    train_samples, test_samples : int
        Sizes of the parts; ``test_samples`` is 0 when the set has no test part of its own.
    licence, citation, source : str
        Terms of use, what to cite, and the page that describes the set.
    files : tuple of RemoteFile
        What is downloaded or shipped; empty for generated data.
    own_folder : bool
        True when another set uses the same file names, so files count only in a folder named after the set.
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
