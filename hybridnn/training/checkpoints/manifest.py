"""What a checkpoint says of itself: ``manifest.json``."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hybridnn.errors import DataError

__all__ = ["FORMAT_VERSION", "MANIFEST", "SUMS", "ArrayEntry", "Manifest", "Origin", "Progress", "parse_manifest"]

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
"""The digests of all files, the manifest's too, as ``sha256sum -c`` reads them."""

FORMAT_VERSION = 1
"""Of the folder's contents; a reader refuses what is newer than itself."""


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class Progress(_Frozen):
    """How far the training had come.

    Attributes
    ----------
    step : int
        Updates done.
    epoch : int
        The epoch under way, from 1; with no minibatches done it is about to begin.
    minibatches : int
        Minibatches of that epoch done.
    loss_sum : float
        Sum of the losses of the epoch's samples so far, each before its update.
    samples : int
        Those samples.
    """

    step: int = 0
    epoch: int = 1
    minibatches: int = 0
    loss_sum: float = 0.0
    samples: int = 0

    def next_epoch(self) -> Progress:
        """The same moment, as the beginning of the epoch after it."""
        return Progress(step=self.step, epoch=self.epoch + 1)


class Origin(_Frozen):
    """What was trained, and on which layout; the layout may be another when training goes on.

    Attributes
    ----------
    model : str
        The network, as text.
    optimizer : str
        With all its settings, as text.
    data : str
        Identity of the data set, as text.
    seed : int
        Of the initial weights and of the order of samples: with `shuffle`, the epoch and the minibatches done it is the
        whole random state, as every generator counts from (seed, layer, row) or (seed, epoch).
    shuffle : bool
    stages : tuple of (int, int)
        Batch and model ranks of every pipeline stage.
    model_split : str
    partition : tuple of int
        Layers of every part of the pipeline, in the order of the network.
    chunks : int
        Such parts on every stage.
    method : str
        The pipeline's.
    """

    model: str
    optimizer: str
    data: str
    seed: int
    shuffle: bool
    stages: tuple[tuple[int, int], ...]
    model_split: str
    partition: tuple[int, ...]
    chunks: int
    method: str


class ArrayEntry(_Frozen):
    """One ``.npy`` file.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        ``float32`` or ``float64``.
    bytes : int
        Of the file.
    sha256 : str
        Of the file, in hexadecimal digits.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    sha256: str


class Manifest(_Frozen):
    """The whole of ``manifest.json``.

    Attributes
    ----------
    format_version : int
    hybridnn : str
        Version that wrote it.
    progress : Progress
    origin : Origin
    slots : tuple of str
        Names of the optimizer's arrays.
    weight_versions : tuple of int
        Updates that the weights of every layer have seen, and its optimizer has done; equal in a drained pipeline.
    arrays : dict
        By name of file.
    """

    format_version: int
    hybridnn: str
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]
    weight_versions: tuple[int, ...]
    arrays: dict[str, ArrayEntry]


def parse_manifest(text: str, path: str) -> Manifest:
    """The manifest that `text` holds.

    Raises
    ------
    DataError
        If it is of a newer format.
    ValueError
        With the reason, if it is no manifest.
    """
    try:
        values: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {version}, written by hybridnn {values.get('hybridnn')}; "
            f"this version reads up to {FORMAT_VERSION}: install that hybridnn, or a newer one"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        raise ValueError(f"{where}{first['msg']}") from None
