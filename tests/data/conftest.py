"""Fixtures of the tests of data sets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.data import Rows


@pytest.fixture(autouse=True)
def no_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the data folders of the user from the tests; return the empty cache folder."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("HYBRIDNN_CACHE", str(cache))
    monkeypatch.delenv("HYBRIDNN_DATA", raising=False)
    return cache


@pytest.fixture
def real_files(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point ``$HYBRIDNN_DATA`` at the official files."""
    monkeypatch.setenv("HYBRIDNN_DATA", str(unpacked))
    return unpacked


@pytest.fixture(scope="session")
def all_of() -> Callable[..., tuple[NDArray[Any], NDArray[Any]]]:
    """Return a function that takes all samples of rows, or those at the given indices, into new arrays."""

    def taken(rows: Rows, dtype: type = np.float64, indices: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
        chosen = np.arange(rows.samples) if indices is None else np.asarray(indices, dtype=np.int64)
        x: NDArray[Any] = np.full((chosen.size, rows.features), np.nan, dtype)
        y: NDArray[Any] = np.full((chosen.size, *rows.targets_shape), -7, dtype if rows.targets_shape else np.int64)
        rows.take(chosen, x, y)
        return x, y

    return taken
