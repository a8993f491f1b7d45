"""Results of one study in several folders, such as those of two machines or two versions, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hybridnn.errors import SettingError
from hybridnn.study.results import StudyPoint, StudyResults, group_points, read_results
from hybridnn.study.statistics import Estimate, ratio_of_medians

FOLDER = "folder"  # label of the axis by which the cells of several folders differ


def read_folders(folders: Sequence[Path]) -> StudyResults:
    """Read the results of one or several folders of a study; of several, the folder is another axis of the cells.

    Raises
    ------
    SettingError
        If two folders are the same, or of different studies.
    DataError
        As `read_results`.
    """
    if len(folders) == 1:
        return read_results(folders[0])
    names = _names(folders)
    found = [_labelled(read_results(folder), name) for folder, name in zip(folders, names, strict=True)]
    first = found[0]
    for folder, results in zip(folders, found, strict=True):
        if results.title != first.title:
            raise SettingError("FOLDER", str(folder), f"holds another study ({results.title}) than {folders[0]} does")
    cells = tuple(cell for results in found for cell in results.cells)
    # Statements are about one folder: over several, the folder would be an axis that they do not name.
    conclusions = first.manifest.conclusions.model_copy(update={"statements": ()})
    planned = tuple(cell for results in found for cell in results.manifest.cells)
    return StudyResults(
        replace(first.manifest, cells=planned, conclusions=conclusions),
        cells,
        group_points(cells),
        tuple(cell for results in found for cell in results.unfinished),
        "; ".join(dict.fromkeys(results.days for results in found)),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """Names of the folders, or their paths where two names are equal."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SettingError("FOLDER", " ".join(map(str, folders)), "must be different folders")
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _labelled(results: StudyResults, name: str) -> StudyResults:
    """The results with their folder in ids and values."""
    manifest = results.manifest
    cells = tuple(
        replace(cell, id=f"{name}/{cell.id}", values={FOLDER: name, **cell.values}) for cell in manifest.cells
    )
    return replace(
        results,
        manifest=replace(manifest, cells=cells),
        cells=tuple(replace(c, id=f"{name}/{c.id}", values={FOLDER: name, **c.values}) for c in results.cells),
        unfinished=tuple(replace(cell, id=f"{name}/{cell.id}") for cell in results.unfinished),
    )


def compared_folders(results: StudyResults) -> tuple[str, ...]:
    """Names of the folders that are compared; empty for the results of one folder."""
    return tuple(dict.fromkeys(str(point.values[FOLDER]) for point in results.points if FOLDER in point.values))


def equal_points(results: StudyResults) -> list[dict[str, StudyPoint]]:
    """Points with the same values of all axes, by their folder, where several folders have them."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, StudyPoint]] = {}
    for point in results.points:
        if FOLDER in point.values:
            key = tuple((label, str(value)) for label, value in point.values.items() if label != FOLDER)
            groups.setdefault(key, {})[str(point.values[FOLDER])] = point
    return [group for group in groups.values() if len(group) > 1]


def times_as_fast(points: dict[str, StudyPoint]) -> dict[str, Estimate]:
    """Seconds per epoch of the first of some equal points over those of each other one, by its folder."""
    (_, first), *others = points.items()
    return {folder: ratio_of_medians(first.epoch_times, point.epoch_times) for folder, point in others}
