"""Tables of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import MICROBATCHES

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]

WIDTH = 190


@dataclass(frozen=True)
class Sheet:
    """Layout of a table."""

    title: str
    columns: Columns  # functions from a row to a cell, by heading
    needs: str  # key of the rows that belong to the table

    def show(self, rows: Iterable[Row], console: Console | None = None) -> None:
        """Print the rows of this table, if there are any."""
        table = Table(title=self.title, title_justify="left")
        for heading in self.columns:
            table.add_column(heading, justify="left" if heading in ("network", "kernel", "product") else "right")
        for row in rows:
            if self.needs in row:
                table.add_row(*(cell(row) for cell in self.columns.values()))
        if table.row_count:
            (console or Console(width=WIDTH)).print(table)


def _network(row: Row) -> str:
    return f"{row['case']}, batch {row['batch_size']}"


def spread(row: Row) -> str:
    """A ratio with its extremes."""
    return f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"


def _speed(peer: str) -> Columns:
    return {
        "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
        peer: lambda row: f"{row['their_samples_per_second']:,.0f}",
        "ratio": spread,
    }


NETWORK: Columns = {"network": _network}

PARALLEL: Columns = {
    "over 1 rank": lambda row: f"{row['speed_up_over_one_rank']:.2f}",
    "comm.": lambda row: f"{row['communication_share']:.0%}",
}

LIMITS: Columns = {
    "products": lambda row: f"{row['products_share']:.0%}",
    "update": lambda row: f"{row['update_share']:.0%}",
    "GFLOP/s": lambda row: f"{row['gflops']:.0f}",
}

MEMORY: Columns = {
    "MB": lambda row: f"{row['our_grown_bytes'] / 1e6:.1f}",
    "PyTorch's": lambda row: f"{row['their_grown_bytes'] / 1e6:.1f}",
}

SERIAL = Sheet(
    "One process, one thread, beside PyTorch eager",
    {
        **NETWORK,
        **_speed("PyTorch"),
        "compiled": lambda row: f"{row['ratio_compiled']:.2f}",
        "scikit-learn": lambda row: f"{row['ratio_sklearn']:.2f}" if "ratio_sklearn" in row else "",
        **LIMITS,
        **MEMORY,
    },
    "ratio",
)

BATCH = Sheet(
    "Batch parallel, two ranks of one thread, beside PyTorch DDP (gloo)",
    {
        **NETWORK,
        **_speed("DDP"),
        **PARALLEL,
        "overlap gains": lambda row: f"{row['overlap_gain']:.2f}",
        **LIMITS,
        **MEMORY,
    },
    "ratio",
)

MODEL = Sheet(
    "Model parallel, two ranks of one thread, beside PyTorch (gloo)",
    {**NETWORK, "split": lambda row: row["way"], **_speed("PyTorch"), **PARALLEL, **LIMITS, **MEMORY},
    "ratio",
)

PIPELINE = Sheet(
    f"Two stages of one thread, {MICROBATCHES} microbatches, beside torch.distributed.pipelining (gloo)",
    {
        **NETWORK,
        "schedule": lambda row: row["way"],
        **_speed("PyTorch"),
        "merging gains": lambda row: f"{row['merging_gain']:.2f}",
        "over passes": lambda row: f"{row['over_passes']:.2f}",
        **LIMITS,
        **MEMORY,
    },
    "ratio",
)

METHODS = Sheet(
    "Two equal stages of 8x1024, batch 128: the methods beside one another",
    {
        "method": lambda row: row["way"],
        "ms per step": lambda row: f"{1000 * row['step_seconds']:.1f}",
        "over sequential": lambda row: f"{row['over_sequential']:.2f}",
        "formula": lambda row: f"{row['formula_over_sequential']:.2f}" if row["formula_over_sequential"] else "",
        "computing": lambda row: f"{row['computing']:.1%}",
        "waiting": lambda row: f"{row['transfer_idle'] + row['imbalance_idle']:.1%}",
        "overhead": lambda row: f"{row['transfer'] + row['other']:.1%}",
    },
    "over_sequential",
)

PARTITION = Sheet(
    "Two stages with the default settings, beside the best of all partitions with as many microbatches",
    {
        **NETWORK,
        "method": lambda row: row["way"],
        "microbatches": lambda row: str(row["microbatches"]),
        "layers": lambda row: "+".join(map(str, row["layers"])),
        "best": lambda row: "+".join(map(str, row["best_layers"])),
        "speed over the best": spread,
    },
    "best_layers",
)

SHARED = Sheet(
    "Batch parallel, two ranks of one thread: one replica that they share, or one each",
    {
        **NETWORK,
        "one rank, ms": lambda row: f"{row['ms_per_step']['one']:.2f}",
        "own, ms": lambda row: f"{row['ms_per_step']['own']:.2f}",
        "shared, ms": lambda row: f"{row['ms_per_step']['shared']:.2f}",
        "own over one": lambda row: spread(row["own_over_one"]),
        "shared over one": spread,
        "shared over own": lambda row: spread(row["shared_over_own"]),
    },
    "ratio",
)
