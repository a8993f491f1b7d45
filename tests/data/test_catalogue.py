"""The catalogue of data sets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.config.settings import load_settings
from hybridnn.data import catalogue, dataset_info, loaders
from hybridnn.data.dataset import Dataset, DatasetInfo, Member, RemoteFile
from hybridnn.data.download import open_members
from hybridnn.data.rows import ArrayRows
from hybridnn.errors import DataError

NAMES = ["digits", "airfoil", "airfoil-4", "ethylene", "mnist", "fashion-mnist", "cifar10", "synthetic"]


def test_every_entry_is_complete_and_cannot_be_changed() -> None:
    assert list(catalogue()) == NAMES  # the default first
    for name, info in catalogue().items():
        assert info.name == name
        assert all([info.title, info.description, info.licence, info.citation, info.source])
        assert info.files or name == "synthetic"
        for file in info.files:
            sums = [part.sha256 for part in file.members] + ([file.sha256] if file.sha256 else [])
            assert sums, f"nothing tells whether {file.name} is right"
            assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in sums)
            assert file.name == file.url.rpartition("/")[2] or name == "digits"
    with pytest.raises(TypeError):
        catalogue()["mine"] = dataset_info("digits")  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "message"), [("CIFAR-10", "did you mean cifar10"), ("zzz", "known are digits, airfoil, airfoil-4")]
)
def test_unknown_name_suggests_the_nearest_or_all(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset_info(name)


TABLE = b"1 2 7\n3 4 8\n5 6 9\n"


def load_mine(info: DatasetInfo) -> Dataset:
    """As docs/extending.md describes a loader."""
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream)
    return info.dataset(ArrayRows(table[:, : info.features], table[:, -1:]))


MINE = DatasetInfo(
    name="mine",
    title="Mine",
    task="regression",
    features=2,
    outputs=1,
    train_samples=3,
    test_samples=0,
    description="Three samples.",
    licence="none",
    citation="none",
    source="https://example.org",
    load=load_mine,
    files=(
        RemoteFile(
            name="mine.zip",
            url="https://example.org/mine.zip",
            sha256=None,
            size=None,
            members=(Member("mine.dat", hashlib.sha256(TABLE).hexdigest()),),
        ),
    ),
)


def test_a_data_set_is_added_by_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_of: Callable[..., Any]
) -> None:
    monkeypatch.setattr(loaders, "ENTRIES", (*loaders.ENTRIES, MINE))
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.dat").write_bytes(TABLE)
    x, y = all_of(load_settings(None, ["data.name=mine"]).data.load().train)
    assert (x.tolist(), y.tolist()) == ([[1, 2], [3, 4], [5, 6]], [[7], [8], [9]])
    settings = load_settings(None, ["data.name=mine", "data.rows=2"])
    assert (settings.data.describe().features, settings.data.load().train.samples) == (2, 2)
    (tmp_path / "mine" / "mine.dat").write_bytes(TABLE + b"0 0 0\n")
    with pytest.raises(DataError, match=r"mine\.dat: sha256 is .* delete it to download again"):
        settings.data.load()
