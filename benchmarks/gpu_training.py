"""Training on one GPU: comparison with PyTorch, and with the rate of the matrix products alone.

``python3 -m benchmarks.gpu_training`` prints a table, writes JSON and draws a chart. Every timed run trains for about a
second and waits for the GPU at its end. PyTorch runs with its fused optimizer (*eager*), and compiled with CUDA graphs
(*compiled*); hybridnn launches kernels one by one (*plain*), or replays CUDA graphs. The samples of both are on the GPU
before the run. ``--device cpu`` runs the program without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from rich.console import Console

from benchmarks.cases import GPU_CASES, Case, our_run, torch_model, torch_run
from benchmarks.gpu_kernels import RESULTS, cupy_or_exit, device_facts
from benchmarks.gpu_report import TRAINING, draw_if_possible
from benchmarks.harness import alternate, seconds_of
from benchmarks.limits import products_of, torch_products_of
from benchmarks.tables import Sheet
from hybridnn import DeviceOptions, ProcessGrid
from hybridnn.gpu.cupy_kernels import cupy_kernels
from hybridnn.nn.kernels import NUMPY, Kernels

PAIRS = 5
SECONDS = 1.0
"""Approximate time of a run."""

LARGE = 2048
"""Least width of layers for which TF32 is measured too: small networks are limited by launches."""

PRECISIONS = ("fp32", "TF32")

Run = Callable[[], Any]


@dataclass(frozen=True)
class Machine:
    """The measured device."""

    name: str  # one of "gpu", "cpu"
    torch_name: str  # its name in PyTorch
    cupy: Any  # None on the CPU

    def waits(self, run: Run) -> Run:
        """The run, followed by a wait for the device."""
        if self.cupy is None:
            return run

        def whole() -> None:
            run()
            self.cupy.cuda.runtime.deviceSynchronize()

        return whole

    def peaks(self, ours: Run, theirs: Run) -> dict[str, int]:
        """Bytes that the allocator of each program uses in a run; empty on the CPU."""
        if self.cupy is None:
            return {}
        import torch

        pool = self.cupy.get_default_memory_pool()
        pool.free_all_blocks()
        torch.cuda.empty_cache()
        before = pool.total_bytes(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        ours()
        theirs()
        return {
            "our_bytes": pool.total_bytes() - before[0],
            "their_bytes": torch.cuda.max_memory_reserved() - before[1],
        }


def long_enough(case: Case, run_of: Callable[[Case], Run]) -> Case:
    """The case with the number of epochs of a timed run.

    Parameters
    ----------
    run_of : callable
        Returns the fastest of the runs that are compared.
    """
    run = run_of(case)
    run()
    return replace(case, epochs=ceil(SECONDS / seconds_of(run) * case.epochs))


def measure(case: Case, machine: Machine, precision: str) -> Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]:
    """Parts of the results of one case in one of `PRECISIONS`: names, and functions that measure them."""
    import torch

    tf32 = precision == "TF32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    kernels: Kernels = NUMPY if machine.cupy is None else cupy_kernels(tf32=tf32)
    kernels.compile(np.dtype(np.float32))

    def ours(case: Case, *, graphs: bool | Literal["auto"]) -> Run:
        options = DeviceOptions(machine.name, tf32=tf32, graphs=graphs)
        return machine.waits(our_run(case, ProcessGrid(), as_rows=True, device=options)[1])

    def theirs(case: Case, *, compiled: bool) -> Run:
        model = torch_model(case).to(machine.torch_name)
        if compiled:
            model = torch.compile(model, mode="reduce-overhead")
        return machine.waits(torch_run(case, model, device=machine.torch_name))

    short = case
    yield "memory", lambda: machine.peaks(lambda: ours(short, graphs=False)(), lambda: theirs(short, compiled=False)())
    case = long_enough(case, lambda case: ours(case, graphs="auto"))
    plain, graphs = (cache(partial(ours, case, graphs=which)) for which in (False, True))
    eager, compiled = (cache(partial(theirs, case, compiled=which)) for which in (False, True))
    yield "plain", lambda: {"ratio_plain": median(alternate(plain(), eager(), PAIRS).ratios)}
    yield "eager", lambda: alternate(graphs(), eager(), PAIRS).summary(case.batch_size * case.steps)

    def beside_compiled() -> Mapping[str, Any]:
        spread = alternate(graphs(), compiled(), PAIRS).spread()
        return {key.replace("ratio", "ratio_compiled"): value for key, value in spread.items()}

    def beside_products() -> Mapping[str, Any]:
        products = alternate(graphs(), machine.waits(products_of(case, kernels)), PAIRS)
        rate = case.products_flops * case.steps / median(products.ours) / 1e12
        return {"products_share": median(products.ratios), "tflop_per_s": rate}

    def beside_torch_products() -> Mapping[str, Any]:
        products = alternate(graphs(), machine.waits(torch_products_of(case, machine.torch_name)), PAIRS)
        return {"torch_products_share": median(products.ratios)}

    yield "products", beside_products
    yield "torch.matmul", beside_torch_products
    yield "compiled", beside_compiled


def main() -> None:
    """Measure, print and write the results."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--case", action="append", help="only networks with this in their name; may be repeated")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="may be repeated (default: all)")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{date.today().isoformat()}-gpu-training.json")
    parser.add_argument("--no-chart", action="store_true")
    arguments = parser.parse_args()
    cupy = cupy_or_exit() if arguments.device == "gpu" else None
    machine = Machine(arguments.device, "cpu" if cupy is None else "cuda", cupy)
    facts = {"device": "CPU"} if cupy is None else device_facts(cupy)
    cases = [case for case in GPU_CASES if not arguments.case or any(word in case.name for word in arguments.case)]
    rows: list[dict[str, Any]] = []
    found = {"date": date.today().isoformat(), "torch": torch.__version__, **facts, "training": rows}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for precision in arguments.precision or PRECISIONS:
        for case in cases:
            if precision == PRECISIONS[0] or (max(case.sizes) >= LARGE and cupy is not None):
                rows.append({**case.about, "precision": precision})
                for name, part in measure(case, machine, precision):
                    _add(rows[-1], name, part)
                    arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    title = f"{found['device']}: SGD with momentum beside PyTorch {found['torch']}"
    Sheet(title, TRAINING, "case").show(rows, Console(width=150))
    if not arguments.no_chart:
        figures = {"gpu": rows, "machine": found["device"], "date": found["date"]}
        draw_if_possible(figures, {"gpu": "one GPU, over PyTorch eager"}, arguments.json.with_suffix(".png"))
    sys.exit(any("errors" in row for row in rows))


def _add(row: dict[str, Any], name: str, part: Callable[[], Mapping[str, Any]]) -> None:
    """Add a part of the results, or the error, after which the other parts are measured all the same."""
    try:
        row.update(part())
    except Exception as error:
        traceback.print_exc()
        row.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
