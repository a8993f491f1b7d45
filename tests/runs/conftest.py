"""Runs that are trained once for all tests of a module, which must not change them."""

from pathlib import Path

import pytest

from reference.trained_runs import REGRESSION, regression_file, train


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on ``mine.npz`` beside it."""
    folder = tmp_path_factory.mktemp("regression")
    train(folder / "run", **{**REGRESSION, "data": {"file": str(regression_file(folder / "mine.npz"))}})
    return folder / "run"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on digits with one hidden layer of 12."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    train(folder, data={"name": "digits"}, model={"hidden": [12]}, training={"epochs": 2, "dtype": "float64"})
    return folder
