"""Profiles of layers: measured times, bytes, and files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from hybridnn import MLP
from hybridnn.errors import DataError, SettingError
from hybridnn.kernels import numpy_kernels
from hybridnn.kernels.numpy_kernels import NumpyKernels
from hybridnn.pipeline.partition import layer_profile
from hybridnn.pipeline.partition.layer_profile import LayerProfile, read_profile, time_layers, write_profile

GOOD = {"forward_seconds": 0.5, "backward_seconds": 1, "output_bytes": 400, "parameter_bytes": 1e6}


def test_bytes_are_those_of_the_arrays() -> None:
    for dtype, size in (("float32", 4), ("float64", 8)):
        profile = time_layers(MLP([5, 7, 7, 3], "tanh", residual=True), 11, dtype, repeats=3)
        assert [layer.output_bytes for layer in profile] == [7 * 11 * size, 7 * 11 * size, 3 * 11 * size]
        assert [layer.parameter_bytes for layer in profile] == [7 * 6 * size, 7 * 8 * size, 3 * 8 * size]
        assert all(0 < layer.forward_seconds < 1 and 0 < layer.backward_seconds < 1 for layer in profile)


def test_each_time_is_the_median_of_its_layer_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock on which every reading is the square of its number: passes take 1, 5, 9, … and a round of two layers
    # reads it twelve times, forward 0 and 1, then backward 1 and 0 with two passes each.
    readings = iter(range(10_000))
    monkeypatch.setattr(layer_profile, "perf_counter", lambda: float(next(readings)) ** 2)
    profile = time_layers(MLP([3, 4, 2]), 2, "float64", repeats=3)

    def seconds(round_number: int, reading: int) -> float:
        start = 12 * round_number + 2 * reading
        return (start + 1) ** 2 - start**2

    # Rounds 1, 2 and 3 count, of which the second is the median.
    assert [layer.forward_seconds for layer in profile] == [seconds(2, 0), seconds(2, 1)]
    backward = [seconds(2, 4) + seconds(2, 5), seconds(2, 2) + seconds(2, 3)]
    assert [layer.backward_seconds for layer in profile] == backward


def test_passes_are_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sizes of all products of one pass: the first layer has no gradient of its input.
    shapes: list[tuple[int, int, int]] = []
    original, transposed = numpy_kernels.matmul, numpy_kernels.matmul_transposed

    def counting(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
        shapes.append((a.shape[0], a.shape[1], b.shape[1]))
        original(a, b, out)

    def counting_transposed(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], room: NDArray[Any] | None) -> None:
        shapes.append((a.shape[1], a.shape[0], b.shape[1]))
        transposed(a, b, out, room)

    monkeypatch.setattr(NumpyKernels, "matmul", staticmethod(counting))
    monkeypatch.setattr(NumpyKernels, "matmul_transposed", staticmethod(counting_transposed))
    time_layers(MLP([3, 4, 2]), 5, "float64", repeats=1)
    forward = [(4, 3, 5), (2, 4, 5)]
    backward = [(4, 2, 5), (2, 5, 4), (4, 5, 3)]
    assert shapes == 2 * (forward + backward)


def test_threads_are_limited_while_timing_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    seen: list[list[int]] = []
    monkeypatch.setattr(layer_profile, "perf_counter", lambda: float(seen.append(threads()) or len(seen)))
    before = threads()
    time_layers(MLP([3, 4, 2]), 2, "float64", repeats=1)
    assert seen
    assert all(found == [1] * len(before) for found in seen)
    assert threads() == before


def test_counts_below_one_are_refused() -> None:
    for name in ("samples", "repeats", "threads"):
        arguments = {"samples": 2, "repeats": 1, "threads": 1} | {name: 0}
        with pytest.raises(SettingError) as error:
            time_layers(MLP([3, 2]), dtype="float32", **arguments)  # type: ignore[arg-type]  # by name
        assert (error.value.setting, error.value.value) == (name, 0)


def test_a_written_profile_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = (LayerProfile(1e-7, 0.1 + 0.2, 4096, 12), LayerProfile(0.0, 3.0, 0, 0))
    write_profile(path, profile)
    assert read_profile(path) == profile
    plain = json.loads(path.read_text())
    assert plain[1] == {"forward_seconds": 0.0, "backward_seconds": 3.0, "output_bytes": 0, "parameter_bytes": 0}
    path.write_text(json.dumps([GOOD | {"name": "first"}]))  # other keys are ignored
    assert read_profile(path) == (LayerProfile(0.5, 1, 400, 1e6),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[{", "profile.json: is not valid JSON"),
        ("[" * 100_000, "profile.json: is not valid JSON"),
        ("\xff", "profile.json: is not valid JSON"),
        ({}, "profile.json: must be a list with an object for every layer"),
        ([], "profile.json: must be a list with an object for every layer"),
        ([GOOD, 3], "profile.json, layer 1: must be an object with forward_seconds, backward_seconds"),
        ([GOOD, {"forward_seconds": 1}], "profile.json, layer 1: backward_seconds is missing"),
        ([GOOD | {"output_bytes": -1}], "profile.json, layer 0: output_bytes is -1, must be a finite"),
        ([GOOD | {"forward_seconds": math.nan}], "forward_seconds is nan, must be a finite"),
        ([GOOD | {"forward_seconds": math.inf}], "forward_seconds is inf, must be a finite"),
        ([GOOD | {"parameter_bytes": "1"}], "parameter_bytes is '1', must be a finite"),
        ([GOOD | {"parameter_bytes": True}], "parameter_bytes is True, must be a finite"),
        ([GOOD | {"parameter_bytes": None}], "parameter_bytes is None, must be a finite"),
    ],
)
def test_damaged_profiles_are_refused(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="latin-1")
    with pytest.raises(DataError) as error:
        read_profile(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.json: cannot be read: No such file"):
        read_profile(tmp_path / "absent.json")
    with pytest.raises(DataError, match=r"no/profile.json: cannot be written: No such file"):
        write_profile(tmp_path / "no" / "profile.json", [])
