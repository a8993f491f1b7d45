"""Manifest of a checkpoint: ``manifest.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hybridnn.errors import DataError, one_line
from hybridnn.pipeline.layout import Layout
from hybridnn.training.records import Progress
from hybridnn.utils.checks import Count
from hybridnn.utils.files import parse_json
from hybridnn.utils.settings_models import first_problem

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"  # SHA-256 of all files, including the manifest, in the format of ``sha256sum -c``
FORMAT_VERSION = 1  # version of the folder's contents; a reader refuses newer ones
NO_VERSION = 10**6  # larger numbers are damage, not a version


class FrozenModel(BaseModel):
    """Base class of the parts of a manifest."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Origin(FrozenModel):
    """What was trained, and on which layout; training may resume on another layout.

    Attributes
    ----------
    model : str
        The network, as text.
    optimizer : str
        With all its settings, as text.
    data : str
        Identity of the data set, as text.
    settings : dict
        Values of all settings that change the training, by name. The seed among them, with the epoch and the
        minibatches done, is the whole random state: generators are keyed by (seed, layer, row) or (seed, epoch).
    """

    model: str
    optimizer: str
    data: str
    settings: dict[str, str]
    layout: Layout


class ArrayEntry(FrozenModel):
    """One ``.npy`` file; `bytes` and `sha256` are those of the whole file."""

    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=2)]
    dtype: Annotated[str, Field(pattern="^float(32|64)$")]
    bytes: Count
    sha256: str


class Manifest(FrozenModel):
    """Contents of ``manifest.json``.

    Attributes
    ----------
    hybridnn : str
        Version that wrote it.
    slots : tuple of str
        Names of the optimizer's arrays.
    arrays : dict
        By file name: the weight and the bias of every layer, and the slots of each.
    """

    format_version: int
    hybridnn: str
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]
    arrays: dict[str, ArrayEntry]

    @model_validator(mode="after")
    def _complete(self) -> Manifest:
        """Refuse arrays other than those of the layers and the optimizer: array names become file names."""
        layers = max(1, len(self.arrays) // (2 * (1 + len(self.slots))))
        expected = {
            f"{array_name(f'layers.{layer}.{kind}', slot)}.npy"
            for layer in range(layers)
            for kind in ("weight", "bias")
            for slot in (None, *self.slots)
        }
        if foreign := self.arrays.keys() - expected:
            raise ValueError(f"{min(foreign)!r} is no array of {layers} layers")
        if missing := expected - self.arrays.keys():
            raise ValueError(f"the array {min(missing)} is missing")
        return self

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every array, by its name without ``.npy``."""
        return {name.removesuffix(".npy"): entry.shape for name, entry in self.arrays.items()}


def array_name(parameter: str, slot: str | None) -> str:
    """Name of an array of a checkpoint: ``layers.0.weight``, or with an optimizer slot ``layers.0.weight.velocity``."""
    return parameter if slot is None else f"{parameter}.{slot}"


def parse_manifest(text: str, path: str) -> Manifest:
    """Parse a manifest.

    Raises
    ------
    DataError
        If it has a newer format.
    ValueError
        With the reason, if `text` is no manifest.
    """
    try:
        values: Any = parse_json(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version >= NO_VERSION:
        raise ValueError(f"format_version = {version}")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {version}, written by hybridnn {one_line(str(values.get('hybridnn')))}; "
            f"this version reads up to {FORMAT_VERSION}: install that hybridnn, or a newer one"
        )
    try:
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
