"""What makes the figures of a study doubtful."""

from __future__ import annotations

from hybridnn.study.report.groups import point_name, speed_ups
from hybridnn.study.report.results import Results
from hybridnn.study.runs.scaling import efficiency_warning, threads_warning

__all__ = ["warnings_of"]


def warnings_of(results: Results) -> list[str]:
    """Return a sentence for each: threads that differ, placements that differ, speed-ups above the ideal."""
    found = [threads_warning([cell.figures for cell in results.cells])]
    against = speed_ups(results)
    for point in results.points:
        name = point_name(results, point)
        nodes = sorted({cell.figures.nodes for cell in point.cells})
        if len(nodes) > 1:
            found.append(f"{name}: repeated on {', '.join(map(str, nodes))} nodes, whose times are not the same")
        speed_up, base = against[point.cells[0].id]
        found.append(efficiency_warning(name, speed_up * base / point.first.ranks))
    return [text for text in found if text]
