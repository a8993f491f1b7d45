"""What each data set is, where it comes from and how its files are recognized."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hybridnn.errors import DataError

__all__ = ["DatasetInfo", "Member", "RemoteFile", "Task", "catalogue", "dataset_info"]

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


def catalogue() -> Mapping[str, DatasetInfo]:
    """Return every known data set by name, the default one (digits) first."""
    from . import airfoil, cifar10, digits, ethylene, mnist, synthetic  # they build on this module's classes

    infos = (
        digits.INFO,
        airfoil.INFO,
        ethylene.INFO,
        mnist.INFO,
        mnist.FASHION_INFO,
        cifar10.INFO,
        synthetic.INFO,
    )
    return MappingProxyType({info.name: info for info in infos})


def dataset_info(name: str) -> DatasetInfo:
    """Look up one data set.

    Raises
    ------
    DataError
        If there is no such set; the message names the nearest known names, or all of them.
    """
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise DataError(f"data.name = {name!r}: no such data set; {hint}")
