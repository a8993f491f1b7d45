"""`benchmarks.gpu_kernels` runs every kernel, emulated on the processor, and divides bytes by time."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_kernels
from hybridnn.kernels.cupy_kernels import CupyKernels
from kernels.cuda_emulator import Emulator

NUMBERS = 2 * gpu_kernels.COLUMNS
MILLISECONDS = 0.5


class Cupy(Emulator):
    """The emulated ``cupy`` with events between which half a millisecond always passes."""

    __version__ = "14"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cuda = SimpleNamespace(
            get_current_stream=Emulator.cuda.get_current_stream,
            Event=lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
            get_elapsed_time=lambda start, stop: MILLISECONDS,
            Device=lambda: SimpleNamespace(id=0, compute_capability="90"),
            runtime=SimpleNamespace(
                getDeviceProperties=lambda number: {"name": b"processor", "multiProcessorCount": 1},
                driverGetVersion=lambda: 0,
                runtimeGetVersion=lambda: 0,
            ),
        )

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None)


def test_every_kernel_runs_and_has_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = Cupy(tmp_path)
    products = SimpleNamespace(multiply=lambda a, b, out, factor, keep: np.matmul(a, b, out=out, casting="unsafe"))
    monkeypatch.setattr(gpu_kernels, "cupy_kernels", lambda tf32=False: CupyKernels(cupy, products))  # type: ignore[arg-type]
    monkeypatch.setattr(gpu_kernels, "load_cupy", lambda: cupy)
    monkeypatch.setattr(gpu_kernels, "PRODUCTS", ((4, 5, 6),))
    monkeypatch.setattr(gpu_kernels, "torch_products", partial(gpu_kernels.torch_products, device="cpu"))
    results = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["", "--numbers", str(NUMBERS), "--runs", "1", "--json", str(results)])
    gpu_kernels.main()
    found = json.loads(results.read_text())
    assert found["device"] == "processor"
    speed = pytest.approx(2 * 4 * 5 * 6 / 0.5e-3 / 1e12)
    assert found["products"] == [
        {"product": f"{name}, 4 x 5 x 6", "tflop_per_s": speed, "torch_tflop_per_s": speed}
        for name in ("fp32", "TF32", "bf16", "fp64")
    ]
    speeds = {(row["kernel"], row["dtype"]): row["gb_per_s"] for row in found["one_pass"]}
    for dtype in ("float32", "float64"):
        array = NUMBERS * np.dtype(dtype).itemsize / (MILLISECONDS / 1000) / 1e9
        arrays = {"copy": 2, "add": 3, "gradient of relu": 3, "SGD with momentum": 5, "AdamW": 7, "row sums": 1}
        for name, count in arrays.items():
            assert speeds[name, dtype] == pytest.approx(count * array), name
    launched = {name for name, _, _ in cupy.launches}
    assert len(launched) > 20, "kernels of every kind were launched"
