"""``python -m benchmarks``: runs every comparison, prints tables, and keeps the figures as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.chart import draw_ratios

RESULTS = Path(__file__).parent / "results"
ALL = ["serial", "batch", "model", "pipeline"]
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

SERIAL_COLUMNS = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}",
    "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
    "PyTorch": lambda row: f"{row['their_samples_per_second']:,.0f}",
    "ratio": lambda row: f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})",
    "compiled": lambda row: f"{row['ratio_compiled']:.2f}",
    "scikit-learn": lambda row: f"{row['ratio_sklearn']:.2f}" if "ratio_sklearn" in row else "",
    "products": lambda row: f"{row['products_share']:.0%}",
    "update": lambda row: f"{row['update_share']:.0%}",
    "GFLOP/s": lambda row: f"{row['gflops']:.0f}",
    "MB": lambda row: f"{row['our_grown_bytes'] / 1e6:.0f}",
    "PyTorch's": lambda row: f"{row['their_grown_bytes'] / 1e6:.0f}",
}
BATCH_COLUMNS = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}",
    "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
    "DDP": lambda row: f"{row['their_samples_per_second']:,.0f}",
    "ratio": lambda row: f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})",
    "over 1 rank": lambda row: f"{row['speed_up_over_one_rank']:.2f}",
    "overlap gains": lambda row: f"{row['overlap_gain']:.2f}",
    "comm.": lambda row: f"{row['communication_share']:.0%}",
}
MODEL_COLUMNS = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}",
    "split": lambda row: row["split"],
    "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
    "PyTorch": lambda row: f"{row['their_samples_per_second']:,.0f}",
    "ratio": lambda row: f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})",
    "over 1 rank": lambda row: f"{row['speed_up_over_one_rank']:.2f}",
    "comm.": lambda row: f"{row['communication_share']:.0%}",
}
TORCH_PIPELINE_COLUMNS = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}",
    "schedule": lambda row: row["method"],
    "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
    "PyTorch": lambda row: f"{row['their_samples_per_second']:,.0f}",
    "ratio": lambda row: f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})",
    "merging gains": lambda row: f"{row['merging_gain']:.2f}",
}
METHOD_COLUMNS = {
    "method": lambda row: row["method"],
    "ms per step": lambda row: f"{1000 * row['step_seconds']:.1f}",
    "over sequential": lambda row: f"{row['over_sequential']:.2f}",
    "formula": lambda row: f"{row['formula_over_sequential']:.2f}" if row["formula_over_sequential"] else "",
    "computing": lambda row: f"{row['computing']:.1%}",
    "waiting": lambda row: f"{row['transfer_idle'] + row['imbalance_idle']:.1%}",
    "overhead": lambda row: f"{row['transfer'] + row['other']:.1%}",
}


def run_lines(command: list[str]) -> list[dict[str, Any]]:
    """Run a benchmark in processes of its own and read the figures it prints, one JSON object a line."""
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def show(title: str, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    """Print one table."""
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    Console(width=170).print(table)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[[], *ALL], help="default: all")
    only = parser.parse_args().only or ALL
    mpirun = Path(sys.executable).with_name("mpirun")
    figures: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "numpy": np.__version__,
    }
    if "serial" in only:
        figures["serial"] = run_lines([sys.executable, "-m", "benchmarks.serial"])
        show("One process, one thread, beside PyTorch eager", figures["serial"], SERIAL_COLUMNS)
    two_ranks = [str(mpirun) if mpirun.exists() else "mpirun", "-n", "2", sys.executable, "-m"]
    if "batch" in only:
        figures["batch"] = run_lines([*two_ranks, "benchmarks.batch_parallel"])
        show("Batch parallel, two ranks of one thread, beside PyTorch DDP (gloo)", figures["batch"], BATCH_COLUMNS)
    if "model" in only:
        figures["model"] = run_lines([*two_ranks, "benchmarks.model_parallel"])
        show("Model parallel, two ranks of one thread, beside PyTorch (gloo)", figures["model"], MODEL_COLUMNS)
    if "pipeline" in only:
        rows = figures["pipeline"] = run_lines([*two_ranks, "benchmarks.pipeline"])
        title = "Two stages of one thread, 8 microbatches, beside torch.distributed.pipelining (gloo)"
        show(title, [row for row in rows if "ratio" in row], TORCH_PIPELINE_COLUMNS)
        title = "Two equal stages of 8x1024, batch 128: the methods beside one another"
        show(title, [row for row in rows if "ratio" not in row], METHOD_COLUMNS)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{figures['date']}-{'-'.join(only)}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    draw_ratios(figures, path.with_suffix(".png"))
    print(f"written to {path} and .png")


if __name__ == "__main__":
    main()
