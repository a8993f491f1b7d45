"""Report of `benchmarks.gpu_day`: tables, a chart, and each figure beside its target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import GPU_CASES
from benchmarks.chart import draw_chart

__all__ = [
    "MEANT_FOR",
    "NOT_MEASURED",
    "TARGETS",
    "Target",
    "Verdict",
    "draw_if_possible",
    "verdicts_of",
    "write_report",
]

Row = Mapping[str, Any]
State = Mapping[str, Any]

MEANT_FOR = "H200"
"""Device that the targets are meant for."""

NOT_MEASURED = "not measured"

SMALL = tuple(case.name for case in GPU_CASES[:2])
LARGE_PRODUCTS = GPU_CASES[-1].name


@dataclass(frozen=True)
class Target:
    """A least value of a figure.

    Attributes
    ----------
    value : callable
        The figure of a row of `benchmarks.gpu_training`.
    cases, precisions : tuple of str
        Rows that must reach it.
    """

    name: str
    least: float
    value: Callable[[Row], float]
    cases: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)


EVERY = tuple(case.name for case in GPU_CASES)
TARGETS = (
    Target("speed over PyTorch eager", 1.1, lambda row: row["ratio"], EVERY),
    Target("speed over PyTorch eager, small networks", 3.0, lambda row: row["ratio"], SMALL),
    Target("speed over torch.compile with CUDA graphs", 1.0, lambda row: row["ratio_compiled"], EVERY),
    Target(
        "speed over the faster of both",
        0.95,
        lambda row: min(row["ratio"], row["ratio_compiled"]),
        (LARGE_PRODUCTS,),
        ("TF32", "bf16"),
    ),
    Target("share of cuBLAS's rate", 0.85, lambda row: row["products_share"], (LARGE_PRODUCTS,), ("fp32", "TF32")),
)


@dataclass(frozen=True)
class Verdict:
    """A figure beside its target.

    Attributes
    ----------
    what : str
        The case and its precision, or the tests.
    found : str
        The measured figure; empty if there is none.
    """

    figure: str
    what: str
    target: str
    found: str
    verdict: str


def verdicts_of(state: State) -> list[Verdict]:
    """One verdict for each target and row, and one for the tests that compare a GPU with the CPU."""
    rows = {(row["case"], row["precision"]): row for row in _rows(state, "training")}
    return [
        *(
            _verdict(target, case, precision, rows.get((case, precision)))
            for target in TARGETS
            for precision in target.precisions
            for case in target.cases
        ),
        *(_verdict_of_tests(state, name) for name in ("tests of kernels", "tests of training")),
    ]


def _verdict(target: Target, case: str, precision: str, row: Row | None) -> Verdict:
    about = target.name, f"{case}, {precision}", f"{target.least:g}"
    if row is None:
        return Verdict(*about, "", NOT_MEASURED)
    found = target.value(row)
    excess = found / target.least - 1
    verdict = f"met, {excess:.0%} above" if excess >= 0 else f"missed by {-excess:.1%}"
    return Verdict(*about, f"{found:.3g}", verdict)


def _verdict_of_tests(state: State, piece: str) -> Verdict:
    about = "results equal those of the CPU, within the bounds of the dtype", piece, "all tests pass"
    found = state["pieces"].get(piece, {})
    counts = found.get("figures")
    if counts is None or not counts["passed"] + len(counts["failed"]):
        return Verdict(*about, "", NOT_MEASURED)
    shown = f"{counts['passed']} passed, {len(counts['failed'])} failed, {counts['skipped']} skipped"
    failed = f"missed by {len(counts['failed'])} tests" if counts["failed"] else f"missed: {found['outcome']}"
    return Verdict(*about, shown, "met" if found["outcome"] == "done" else failed)


def _rows(state: State, key: str) -> list[Row]:
    """Rows of a table, of all pieces that have it."""
    return [row for piece in state["pieces"].values() for row in piece.get("figures", {}).get(key, ())]


def write_report(state: State, names: Sequence[str], folder: Path) -> None:
    """Write ``gpu-day.md``, and ``gpu-day.png`` once a network was measured.

    Parameters
    ----------
    state : mapping
        Contents of ``gpu-day.json``.
    names : sequence of str
        All pieces in their order.
    """
    training = _rows(state, "training")
    device = _device(state)
    lines = ["# Measurements on a GPU", "", _about(device), ""]
    lines += ["## Targets", "", *_table(("figure", "of", "target", "measured", "verdict"), _cells(state)), ""]
    lines += ["## Training", "", *_table(TRAINING, _cells_of(training, TRAINING)), ""]
    lines += ["## Kernels", "", *_table(KERNELS, _cells_of(_rows(state, "one_pass"), KERNELS)), ""]
    lines += ["## Matrix products", "", *_table(PRODUCTS, _cells_of(_rows(state, "products"), PRODUCTS)), ""]
    lines += ["## Pieces", "", *_table(("piece", "outcome", "seconds", "date"), _cells_of_pieces(state, names)), ""]
    lines += [line for name in names for line in _output(name, state["pieces"].get(name, {}))]
    (folder / "gpu-day.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    if training:
        _draw(training, device, max(piece["date"] for piece in state["pieces"].values()), folder / "gpu-day.png")


def _draw(training: Sequence[Row], device: str, date: str, path: Path) -> None:
    eager = [{**row, "way": row["precision"]} for row in training]
    compiled = [
        {"case": row["case"], "batch_size": row["batch_size"], "way": row["way"]}
        | {key: row[key.replace("ratio", "ratio_compiled")] for key in ("ratio", "ratio_min", "ratio_max")}
        for row in eager
    ]
    titles = {"eager": "over PyTorch eager", "compiled": "over torch.compile with CUDA graphs"}
    figures = {"machine": device or "a GPU", "date": date, "eager": eager, "compiled": compiled}
    draw_if_possible(figures, titles, path)


def draw_if_possible(figures: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """`draw_chart`, or a line on standard error without Matplotlib, which a machine with a GPU need not have."""
    try:
        draw_chart(figures, titles, path)
    except ModuleNotFoundError as error:
        print(f"{path.name} is not drawn: {error}", file=sys.stderr)


def _about(device: str) -> str:
    if not device:
        return "No benchmark has run yet."
    return f"Device: {device}." + ("" if MEANT_FOR in device else f" The targets are meant for an {MEANT_FOR}.")


def _device(state: State) -> str:
    """Names of the measured devices."""
    found = [piece.get("figures", {}).get("device") for piece in state["pieces"].values()]
    return ", ".join(dict.fromkeys(name for name in found if name))


TRAINING: Mapping[str, Callable[[Row], str]] = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}, {row['precision']}",
    "samples/s": lambda row: f"{row['our_samples_per_second']:,.0f}",
    "eager": lambda row: f"{row['their_samples_per_second']:,.0f}",
    "ratio": lambda row: f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})",
    "ratio without graphs": lambda row: f"{row['ratio_plain']:.2f}",
    "over compiled": lambda row: f"{row['ratio_compiled']:.2f}",
    "share of products": lambda row: f"{row['products_share']:.0%}",
    "TFLOP/s": lambda row: f"{row['tflop_per_s']:.2f}",
    "MB": lambda row: f"{row['our_bytes'] / 1e6:,.0f}" if "our_bytes" in row else "",
    "PyTorch's MB": lambda row: f"{row['their_bytes'] / 1e6:,.0f}" if "their_bytes" in row else "",
}
KERNELS: Mapping[str, Callable[[Row], str]] = {
    "kernel": lambda row: f"{row['kernel']}, {row['dtype']}",
    "GB/s": lambda row: f"{row['gb_per_s']:,.0f}",
    "of a copy": lambda row: f"{row['share_of_copy']:.0%}",
}
PRODUCTS: Mapping[str, Callable[[Row], str]] = {
    "product": lambda row: row["product"],
    "TFLOP/s": lambda row: f"{row['tflop_per_s']:.1f}",
}


def _cells(state: State) -> list[Sequence[str]]:
    return [(one.figure, one.what, one.target, one.found, one.verdict) for one in verdicts_of(state)]


def _cells_of(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> list[Sequence[str]]:
    return [[cell(row) for cell in columns.values()] for row in rows]


def _cells_of_pieces(state: State, names: Sequence[str]) -> list[Sequence[str]]:
    found = state["pieces"]
    return [
        (name, found[name]["outcome"], f"{found[name]['seconds']:.0f}", found[name]["date"])
        if name in found
        else (name, "not run", "", "")
        for name in names
    ]


def _table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; a dash if there are no rows."""
    shown = ["| " + " | ".join(cells) + " |" for cells in (list(headings), *map(list, rows))]
    return [shown[0], "|---" * (shown[0].count("|") - 1) + "|", *shown[1:]] if shown[1:] else ["-"]


def _output(name: str, piece: Mapping[str, Any]) -> list[str]:
    """The last lines of a piece that was not done."""
    return [f"### {name}", "", "```text", *piece["output"], "```", ""] if "output" in piece else []
