"""The catalogue of data sets."""

from __future__ import annotations

import re

import pytest

from hybridnn.datasets import catalogue, dataset_info
from hybridnn.errors import DataError

NAMES = ["digits", "airfoil", "ethylene", "mnist", "fashion-mnist", "cifar10", "synthetic"]


def test_names_with_the_default_first() -> None:
    assert list(catalogue()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_complete(name: str) -> None:
    info = dataset_info(name)
    assert info.name == name
    assert all([info.title, info.description, info.licence, info.citation, info.source])
    assert info.files or name == "synthetic"
    for file in info.files:
        sums = [part.sha256 for part in file.members] + ([file.sha256] if file.sha256 else [])
        assert sums, f"nothing tells whether {file.name} is right"
        assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in sums)


def test_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        catalogue()["mine"] = dataset_info("digits")  # type: ignore[index]


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match="did you mean cifar10"):
        dataset_info("CIFAR-10")


def test_unknown_name_like_no_other_lists_all() -> None:
    with pytest.raises(DataError, match="known are digits, airfoil"):
        dataset_info("zzz")
