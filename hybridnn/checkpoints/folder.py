"""Folders of checkpoints: their names, manifests, publication, pruning, and removal of leftovers.

``step-00001234`` is a checkpoint. All temporary names begin with a dot and are removed by `clean`:
``.step-00001234.partial`` is being written, ``.step-00001234.removed`` is being deleted, and
``.step-00001234.replaced`` is replaced by a new checkpoint of the same step; until that has its name, it is the
checkpoint. A file or a broken link with such a name is a damaged checkpoint: skipped, and removed like the others.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hybridnn.checkpoints.file_io import sync, write_file
from hybridnn.errors import DataError, one_line
from hybridnn.pipeline.layout import Layout
from hybridnn.training.records import Progress
from hybridnn.utils.checks import Count
from hybridnn.utils.files import folder_names, parse_json
from hybridnn.utils.settings_models import first_problem

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"  # SHA-256 of all files, including the manifest, in the format of ``sha256sum -c``
FORMAT_VERSION = 1  # version of the folder's contents; a reader refuses newer ones
NO_VERSION = 10**6  # larger numbers are damage, not a version

_NAME = re.compile(r"(?:step-(\d{8,18})|\.step-(\d{8,18})\.(partial|removed|replaced))", re.ASCII)


def step_folder(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Step of the folder of a checkpoint, finished or not; ``ValueError`` if it has another name."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path} is not the folder of a checkpoint")
    return int(found[1] or found[2])


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; none if it does not exist.

    Raises `DataError` if it is no folder or cannot be read.
    """
    finished = {step_of(path): path for path in _paths(folder, "replaced")}
    finished |= {step_of(path): path for path in _paths(folder, None)}
    return [finished[step] for step in sorted(finished, reverse=True)]


def clean(folder: Path) -> None:
    """Remove leftovers of an interrupted run; only for the one job that writes to `folder`."""
    for path in _paths(folder, "replaced"):
        finished = step_folder(folder, step_of(path))
        if not os.path.lexists(finished):
            path.rename(finished)
        else:
            _delete(path)
    for kind in ("partial", "removed"):
        for path in _paths(folder, kind):
            _delete(path)


def publish(partial: Path, finished: Path) -> None:
    """Rename a checkpoint that is complete and on disk to its final name, replacing an older one of the same step."""
    sync(partial)
    replaced = hidden(finished, "replaced")
    if os.path.lexists(finished):
        _rename_over(finished, replaced)
    partial.rename(finished)
    sync(finished.parent)
    if os.path.lexists(replaced):
        _delete(replaced)


def prune(folder: Path, keep: int, newest: int) -> None:
    """Remove all but the `keep` newest checkpoints.

    Those of steps after `newest`, the step just written, are removed too: the training continued from before them.
    """
    paths = checkpoint_folders(folder)
    abandoned = [path for path in paths if step_of(path) > newest]
    for path in abandoned + paths[len(abandoned) :][keep:]:
        removed = hidden(path, "removed")  # a partly deleted folder does not have the name of a checkpoint
        _rename_over(path, removed)
        _delete(removed)


def _rename_over(path: Path, target: Path) -> None:
    """Rename a folder, replacing what a failed attempt may have left under the new name."""
    if os.path.lexists(target):
        _delete(target)
    path.rename(target)


def _delete(path: Path) -> None:
    """Delete a folder with its contents, a file, or a link but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def hidden(path: Path, kind: str) -> Path:
    """A temporary name of the checkpoint of a step; its kind is "partial", "removed" or "replaced"."""
    return path.with_name(f".step-{step_of(path):08d}.{kind}")


def _paths(folder: Path, kind: str | None) -> list[Path]:
    """Paths in `folder` with a temporary name of one kind; None: with the name of a checkpoint."""
    matches = map(_NAME.fullmatch, folder_names(folder))
    return [folder / found[0] for found in matches if found is not None and found[3] == kind]


# -- manifest ----------------------------------------------------------------------------------------------------------


class FrozenModel(BaseModel):
    """Base class of the parts of a manifest."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Origin(FrozenModel):
    """What was trained, and on which layout; training may resume on another layout."""

    model: str  # the network, as text
    optimizer: str  # with all its settings, as text
    data: str  # identity of the data set, as text
    # values of all settings that change the training, by name. The seed among them, with the epoch and the minibatches
    # done, is the whole random state: generators are keyed by (seed, layer, row) or (seed, epoch)
    settings: dict[str, str]
    layout: Layout


class ArrayEntry(FrozenModel):
    """One ``.npy`` file; `bytes` and `sha256` are those of the whole file."""

    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=2)]
    dtype: Annotated[str, Field(pattern="^float(32|64)$")]
    bytes: Count
    sha256: str


class Manifest(FrozenModel):
    """Contents of ``manifest.json``."""

    format_version: int
    hybridnn: str  # version that wrote it
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]  # names of the optimizer's arrays
    arrays: dict[str, ArrayEntry]  # by file name: the weight and the bias of every layer, and the slots of each

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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, and the SHA-256 of all files of the checkpoint, to disk."""
    text = (manifest.model_dump_json(indent=2) + "\n").encode()
    hashes = {name: entry.sha256 for name, entry in manifest.arrays.items()}
    hashes[MANIFEST] = hashlib.sha256(text).hexdigest()
    sums = "".join(f"{sha256}  {name}\n" for name, sha256 in hashes.items())
    write_file(folder / MANIFEST, text)
    write_file(folder / SUMS, sums.encode())


def parse_manifest(text: str, path: str) -> Manifest:
    """Parse a manifest; `DataError` if its format is newer, `ValueError` with the reason if `text` is none."""
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
