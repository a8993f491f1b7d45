"""Report of `benchmarks.gpu_day`: tables, a chart, and each figure beside its target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import GPU_CASES
from benchmarks.chart import draw_chart
from benchmarks.tables import spread

Row = Mapping[str, Any]
Pieces = Mapping[str, Mapping[str, Any]]
"""Results of the pieces of one device by name."""

MEANT_FOR = "H200"
"""Device that the targets are meant for."""

NOT_MEASURED = "not measured"

SMALL = tuple(case.name for case in GPU_CASES[:2])
LARGE_PRODUCTS = GPU_CASES[-1].name


class Target(NamedTuple):
    """A least value of a figure."""

    name: str
    least: float
    value: Callable[[Row], float]  # the figure of a row of `benchmarks.gpu_training`; raises `KeyError` without it
    cases: tuple[str, ...]  # rows that must reach it
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
        ("TF32",),
    ),
    Target(
        "share of cuBLAS's rate", 0.85, lambda row: row["torch_products_share"], (LARGE_PRODUCTS,), ("fp32", "TF32")
    ),
)


TESTS = "tests of kernels", "tests of training", "tests of training, several ranks"


class Verdict(NamedTuple):
    """A figure beside its target."""

    figure: str
    what: str  # the case and its precision, or the tests
    target: str
    found: str  # the measured figure; empty if there is none
    verdict: str


def verdicts_of(pieces: Pieces) -> list[Verdict]:
    """One verdict for each target and row, and one for the tests that compare a GPU with the CPU."""
    rows = {(row["case"], row["precision"]): row for row in _rows(pieces, "training")}
    return [
        *(
            _verdict(target, case, precision, rows.get((case, precision), {}))
            for target in TARGETS
            for precision in target.precisions
            for case in target.cases
        ),
        *(_verdict_of_tests(name, pieces.get(name, {})) for name in TESTS),
    ]


def _verdict(target: Target, case: str, precision: str, row: Row) -> Verdict:
    about = target.name, f"{case}, {precision}", f"{target.least:g}"
    try:
        found = target.value(row)
    except KeyError:
        return Verdict(*about, "", NOT_MEASURED)
    excess = found / target.least - 1
    verdict = f"met, {excess:.0%} above" if excess >= 0 else f"missed by {-excess:.1%}"
    return Verdict(*about, f"{found:.3g}", verdict)


def _verdict_of_tests(name: str, piece: Mapping[str, Any]) -> Verdict:
    """Only a test that compared results, and found others than expected, misses the target."""
    about = "results equal those of the CPU, within the bounds of the dtype", name, "all tests pass"
    counts = piece.get("figures")
    if counts is None:
        return Verdict(*about, "", f"{NOT_MEASURED}: {piece['outcome']}" if piece else NOT_MEASURED)
    passed, failed, errors = counts["passed"], len(counts["failed"]), len(counts["errors"])
    skipped = [f"{number} skipped ({reason})" for reason, number in counts["skipped"].items()]
    shown = ", ".join([f"{passed} passed", f"{failed} failed", f"{errors} ended with errors", *skipped])
    if failed:
        return Verdict(*about, shown, f"missed by {failed} tests")
    if piece["outcome"] != "done":
        return Verdict(*about, shown, f"{NOT_MEASURED}: {piece['outcome']}")
    return Verdict(*about, shown, "met" if passed else NOT_MEASURED)


def _rows(pieces: Pieces, key: str) -> list[Row]:
    """Rows of a table, of all pieces that have it."""
    return [row for piece in pieces.values() for row in piece.get("figures", {}).get(key, ())]


def write_report(state: Mapping[str, Any], names: Sequence[str], folder: Path) -> None:
    """Write ``gpu-day.md``, and ``gpu-day.png`` once a network was measured.

    Parameters
    ----------
    state : mapping
        Contents of ``gpu-day.json``.
    names : sequence of str
        All pieces in their order.
    """
    devices: Mapping[str, Pieces] = state["devices"]
    lines = [line for device, pieces in devices.items() for line in _lines_of(device, pieces, names)]
    (folder / "gpu-day.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    training = [{**row, "device": device} for device, pieces in devices.items() for row in _rows(pieces, "training")]
    if training:
        date = max(piece["date"] for pieces in devices.values() for piece in pieces.values())
        _draw(training, date, folder / "gpu-day.png")


def _lines_of(device: str, pieces: Pieces, names: Sequence[str]) -> list[str]:
    """Report of one device."""
    training = _rows(pieces, "training")
    return [
        f"# Measurements on {device}",
        "",
        *([] if MEANT_FOR in device else [f"The targets are meant for an {MEANT_FOR}.", ""]),
        *_section("Targets", _table(("figure", "of", "target", "measured", "verdict"), verdicts_of(pieces))),
        *_section("Training", _table(TRAINING, _cells_of(training, TRAINING)) + _errors(training)),
        *_section("Kernels", _table(KERNELS, _cells_of(_rows(pieces, "one_pass"), KERNELS))),
        *_section("Matrix products", _table(PRODUCTS, _cells_of(_rows(pieces, "products"), PRODUCTS))),
        *_section("Pieces", _table(("piece", "outcome", "seconds", "date", "commit"), _cells_of_pieces(pieces, names))),
        *(line for name in names for line in _output(name, pieces.get(name, {}))),
    ]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _errors(training: Sequence[Row]) -> list[str]:
    """Why figures of networks are missing."""
    texts = [
        f"* {row['case']}, {row['precision']}, {name}: {' '.join(error.split())}"
        for row in training
        for name, error in row.get("errors", {}).items()
    ]
    return ["", *texts] if texts else []


def _draw(training: Sequence[Row], date: str, path: Path) -> None:
    devices = list(dict.fromkeys(row["device"] for row in training))
    one = len(devices) == 1
    eager = [{**row, "way": row["precision"] if one else f"{row['precision']}, {row['device']}"} for row in training]
    compiled = [
        {"case": row["case"], "batch_size": row["batch_size"], "way": row["way"]}
        | {key: row[key.replace("ratio", "ratio_compiled")] for key in ("ratio", "ratio_min", "ratio_max")}
        for row in eager
        if "ratio_compiled" in row
    ]
    titles = {"eager": "over PyTorch eager", "compiled": "over torch.compile with CUDA graphs"}
    figures = {"machine": ", ".join(devices), "date": date, "eager": eager, "compiled": compiled}
    draw_if_possible(figures, titles, path)


def draw_if_possible(figures: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """`draw_chart`, or a line on standard error without Matplotlib, which a machine with a GPU need not have."""
    try:
        draw_chart(figures, titles, path)
    except ModuleNotFoundError as error:
        print(f"{path.name} is not drawn: {error}", file=sys.stderr)


def _figure(key: str, form: str, unit: float = 1.0) -> Callable[[Row], str]:
    """A cell of a row; empty if the row lacks the figure."""
    return lambda row: form.format(row[key] / unit) if key in row else ""


TRAINING: Mapping[str, Callable[[Row], str]] = {
    "network": lambda row: f"{row['case']}, batch {row['batch_size']}, {row['precision']}",
    "samples/s": _figure("our_samples_per_second", "{:,.0f}"),
    "eager": _figure("their_samples_per_second", "{:,.0f}"),
    "ratio": lambda row: spread(row) if "ratio" in row else "",
    "ratio without graphs": _figure("ratio_plain", "{:.2f}"),
    "over compiled": _figure("ratio_compiled", "{:.2f}"),
    "share of products": _figure("products_share", "{:.0%}"),
    "share of torch.matmul": _figure("torch_products_share", "{:.0%}"),
    "TFLOP/s": _figure("tflop_per_s", "{:.2f}"),
    "MB": _figure("our_bytes", "{:,.0f}", 1e6),
    "PyTorch's MB": _figure("their_bytes", "{:,.0f}", 1e6),
}
KERNELS: Mapping[str, Callable[[Row], str]] = {
    "kernel": lambda row: f"{row['kernel']}, {row['dtype']}",
    "GB/s": lambda row: f"{row['gb_per_s']:,.0f}",
    "of a copy": lambda row: f"{row['share_of_copy']:.0%}",
}
PRODUCTS: Mapping[str, Callable[[Row], str]] = {
    "product": lambda row: row["product"],
    "TFLOP/s": lambda row: f"{row['tflop_per_s']:.1f}",
    "torch.matmul": lambda row: f"{row['torch_tflop_per_s']:.1f}",
}


def _cells_of(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> list[Sequence[str]]:
    return [[cell(row) for cell in columns.values()] for row in rows]


def _cells_of_pieces(pieces: Pieces, names: Sequence[str]) -> list[Sequence[str]]:
    return [
        (name, piece["outcome"], f"{piece['seconds']:.0f}", piece["date"], piece.get("commit", ""))
        if (piece := pieces.get(name))
        else (name, "not run", "", "", "")
        for name in names
    ]


def _table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; a dash if there are no rows."""
    shown = ["| " + " | ".join(cells) + " |" for cells in (list(headings), *map(list, rows))]
    return [shown[0], "|---" * (shown[0].count("|") - 1) + "|", *shown[1:]] if shown[1:] else ["-"]


def _output(name: str, piece: Mapping[str, Any]) -> list[str]:
    """The last lines of a piece that was not done."""
    return [f"### {name}", "", "```text", *piece["output"], "```", ""] if "output" in piece else []
