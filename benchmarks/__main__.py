"""``python -m benchmarks`` runs the selected parts, prints tables, and writes the results as JSON and as a chart."""

from __future__ import annotations

import argparse
import json
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chart import draw_chart
from benchmarks.parts import PARTS

RESULTS = Path(__file__).parent / "results"


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="WORD",
        help="only networks with WORD in name@batch; repeatable",
    )
    parser.add_argument("--pairs", type=int, help="runs of each program (default: that of each part)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and chart")
    arguments = parser.parse_args()
    for name in arguments.parts:
        if name not in PARTS:
            parser.error(f"no part is called {name}; there are {', '.join(PARTS)}")
    return arguments


def main() -> None:
    """Run the selected parts."""
    arguments = read_arguments()
    figures: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "numpy": np.__version__,
    }
    names = arguments.parts or list(PARTS)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{figures['date']}-{'-'.join(names)}.json"
    for name in names:
        figures[name] = PARTS[name].measure(arguments.case, arguments.pairs)
        for sheet in PARTS[name].sheets:
            sheet.show(figures[name])
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")  # a later part may fail
    chart = path.with_suffix(".png")
    draw_chart(figures, {name: part.bars for name, part in PARTS.items()}, chart)
    print("written to", " and ".join(str(file) for file in (path, chart) if file.exists()))


if __name__ == "__main__":
    main()
