"""Tables and chart of figures that are written down here."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.chart import draw_chart
from benchmarks.parts import PARTS
from reference.pictures import least_points

RATIO = {"ratio": 2.5, "ratio_min": 1.25, "ratio_max": 4.0, "pairs": 9}
NETWORK = {"case": "16-4x1024-2", "batch_size": 100}
BESIDE_TORCH = {
    **NETWORK,
    **RATIO,
    "our_samples_per_second": 4550.2,
    "their_samples_per_second": 1820.1,
    "products_share": 0.87,
    "update_share": 0.11,
    "gflops": 54.4,
    "our_grown_bytes": 41_300_000,
    "their_grown_bytes": 45_900_000,
}
PARALLEL = {"speed_up_over_one_rank": 1.49, "communication_share": 0.18}
METHOD = {
    "way": "gpipe",
    "step_seconds": 0.0959,
    "over_sequential": 1.08,
    "formula_over_sequential": None,
    "computing": 0.825,
    "transfer_idle": 0.1,
    "imbalance_idle": 0.033,
    "transfer": 0.03,
    "other": 0.013,
}

FIGURES: dict[str, list[dict[str, Any]]] = {
    "serial": [
        {**BESIDE_TORCH, "ratio_compiled": 1.16, "ratio_sklearn": 1.37},
        {**BESIDE_TORCH, "ratio_compiled": 0.99},
    ],
    "batch": [{**BESIDE_TORCH, **PARALLEL, "overlap_gain": 0.92}],
    "model": [{**BESIDE_TORCH, **PARALLEL, "way": "columns"}],
    "pipeline": [{**BESIDE_TORCH, "way": "1f1b", "merging_gain": 1.31}, {**NETWORK, **METHOD}],
    "shared": [
        {
            **NETWORK,
            **RATIO,
            "ms_per_step": {"one": 35.1, "own": 27.8, "shared": 24.06},
            "own_over_one": RATIO | {"ratio": 1.22},
            "shared_over_own": RATIO | {"ratio": 1.18},
        }
    ],
    "progress": [{**NETWORK, **RATIO, "way": "polling", "ms_per_step": 27.8}],
    "in-process": [
        {**NETWORK, **RATIO, "way": "program", "seconds_of_four": 2.4, "seconds_of_one": 6.0, "asked_times": 1.5},
        {"quantity": "message: Send and Recv", "unit": "µs", "measured": 21.4321, "asked": 50.0},
    ],
    "class-kit": [{"quantity": "check all of a1", "unit": "s", "measured": 7.4321, "asked": 20.0}],
}

LIMITS_AND_MEMORY = ["87%", "11%", "54", "41.3", "45.9"]
SPEED = ["16-4x1024-2, batch 100", "4,550", "1,820", "2.50 (1.25-4.00)"]

EXPECTED = {
    "serial": [
        [*SPEED, "1.16", "1.37", *LIMITS_AND_MEMORY],
        [*SPEED, "0.99", "", *LIMITS_AND_MEMORY],
    ],
    "batch": [[*SPEED, "1.49", "18%", "0.92", *LIMITS_AND_MEMORY]],
    "model": [[SPEED[0], "columns", *SPEED[1:], "1.49", "18%", *LIMITS_AND_MEMORY]],
    "pipeline": [
        [SPEED[0], "1f1b", *SPEED[1:], "1.31", *LIMITS_AND_MEMORY],
        ["gpipe", "95.9", "1.08", "", "82.5%", "13.3%", "4.3%"],
    ],
    "shared": [
        [SPEED[0], "35.10", "27.80", "24.06", "1.22 (1.25-4.00)", "2.50 (1.25-4.00)", "1.18 (1.25-4.00)"],
    ],
    "progress": [[SPEED[0], "polling", "27.80", "2.50 (1.25-4.00)"]],
    "in-process": [
        [SPEED[0], "program", "2.40", "6.00", "0.40 (0.25-0.80)", "1.5 at most"],
        ["message: Send and Recv", "21.4", "50 at most", "µs"],
    ],
    "class-kit": [["check all of a1", "7.43", "20 at most", "s"]],
}


@pytest.mark.parametrize("part", PARTS)
def test_every_row_stands_in_its_table_alone(part: str) -> None:
    out = StringIO()
    for sheet in PARTS[part].sheets:
        sheet.show(FIGURES[part], Console(file=out, width=300))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line.strip("│").split("│")] for line in lines] == EXPECTED[part]


def test_a_table_without_rows_is_not_printed() -> None:
    out = StringIO()
    PARTS["pipeline"].sheets[1].show(FIGURES["pipeline"][:1], Console(file=out))
    assert out.getvalue() == ""


def drawn(monkeypatch: pytest.MonkeyPatch, figures: dict[str, Any]) -> list[Figure]:
    """The figures that are written."""
    saved: list[Figure] = []
    monkeypatch.setattr("benchmarks.chart.write_figure", lambda figure, path: saved.append(figure))
    titles = {name: part.bars for name, part in PARTS.items()}
    draw_chart({"machine": "a machine", "date": "2026-01-01", **figures}, titles, Path("no.png"))
    return saved


def points(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Ratios and the ends of their ranges by label."""
    found = {}
    for container in axes.containers:
        line, _, (ranges,) = container.lines
        ends = [float(x) for segment in ranges.get_segments() for x, _ in segment]
        found[container.get_label()] = ([float(x) for x in line.get_xdata()], ends)
    return found


def test_the_chart_has_a_point_with_its_range_for_each_ratio_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn(monkeypatch, FIGURES)
    (axes,) = figure.axes
    rows: dict[str, list[Any]] = {}
    for name in ("serial", "batch", "model", "pipeline"):
        for row in FIGURES[name]:
            if "ratio" in row:
                way = f", {row['way']}" if row.get("way") else ""
                rows.setdefault(PARTS[name].bars + way, []).append(row)
    found = points(axes)
    assert list(found) == list(rows)
    for label, of_way in rows.items():
        assert found[label][0] == [row["ratio"] for row in of_way]
        assert found[label][1] == pytest.approx([row[end] for row in of_way for end in ("ratio_min", "ratio_max")])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["16-4x1024-2\nbatch 100"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(rows)


def test_parts_without_a_peer_have_a_chart_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn(monkeypatch, {"shared": FIGURES["shared"]})
    assert list(points(figure.axes[0])) == [PARTS["shared"].bars]
    assert drawn(monkeypatch, {"pipeline": FIGURES["pipeline"][1:]}) == []


def test_text_of_the_chart_is_legible_in_a_column_of_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn(monkeypatch, FIGURES)
    assert least_points(figure) >= 6


def test_networks_with_many_layers_have_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    row = FIGURES["serial"][0] | {"case": "784-128-127-126-125-124-123-10", "batch_size": 128}
    (figure,) = drawn(monkeypatch, {"serial": [row]})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["784-…-10\nbatch 128"]


def test_the_chart_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    titles = {"progress": "bars"}
    draw_chart({"machine": "a machine", "date": "2026-01-01", "progress": FIGURES["progress"]}, titles, path)
    assert path.read_bytes().startswith(b"\x89PNG")
