"""Maps of the best process grid over width and minibatch: where batch, model or integrated parallelism is fastest.

This is the first future work of Laugier et al. 2018, section 10: the thresholds of model and data size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.cost.machine import Machine
from hybridnn.cost.plan import best_exact
from hybridnn.cost.prediction import Workload
from hybridnn.drawing.figures import CHARACTER, COLUMN, ON_LIGHT, figure_bytes, new_figure, tidy
from hybridnn.errors import GridError, SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.utils.checks import require_whole
from hybridnn_papers.formulas import best_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Grid = tuple[int, int]  # batch and model ranks


@dataclass(frozen=True)
class GridMap:
    """The fastest grid for every width (rows of `grids`) and minibatch (columns); None where no grid can be used."""

    title: str
    ranks: int
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    grids: tuple[tuple[Grid | None, ...], ...]

    def names(self) -> list[list[str]]:
        """``batch``, ``model``, batch x model ranks, or ``-``, for every cell."""
        return [[self._name(grid) for grid in row] for row in self.grids]

    def batch_share(self, grid: Grid) -> float:
        """Share of the batch axis in lg P: 1 for batch, 0 for model parallelism."""
        return log2(grid[0]) / log2(self.ranks) if self.ranks > 1 else 1.0

    def _name(self, grid: Grid | None) -> str:
        if grid is None:
            return "-"
        batch, model = grid
        return "batch" if model == 1 else "model" if batch == 1 else f"{batch} x {model}"


def map_of_formulas(
    layers: int, widths: Sequence[int], batches: Sequence[int], ranks: int, alpha: float, beta: float
) -> GridMap:
    """The grids that communicate least, by `best_grid`, for `layers` layers of d x d weights."""

    def fastest(width: int, batch: int) -> Grid:
        return best_grid([width] * (layers + 1), batch, ranks, alpha, beta)

    require_whole("layers", layers, 1)
    return _map_of("least communication, formulas", widths, batches, ranks, fastest)


def map_of_machine(layers: int, widths: Sequence[int], batches: Sequence[int], ranks: int, machine: Machine) -> GridMap:
    """The grids whose whole step is fastest by a machine file: computing, communication and waiting.

    SGD without momentum, a replica for every batch rank, one stage; the split of the layers and the overlap are those
    of the fastest layout (`hybridnn.cost.plan.best_exact`).
    """

    def fastest(width: int, batch: int) -> Grid:
        network = MLP([width] * (layers + 1))
        workload = Workload(network, batch, batch, optimizer=SGD(momentum=0.0), classification=False)
        best = best_exact(workload, machine, ranks, {"pipeline": 1, "shared_replicas": False})
        return best.layout.stages[0]

    require_whole("layers", layers, 1)
    return _map_of(f"fastest step, {machine.name}", widths, batches, ranks, fastest)


def _map_of(
    title: str, widths: Sequence[int], batches: Sequence[int], ranks: int, fastest: Callable[[int, int], Grid]
) -> GridMap:
    def cell(width: int, batch: int) -> Grid | None:
        try:
            return fastest(width, batch)
        except GridError:
            return None
        except SettingError as error:
            if error.setting not in ("ranks", "parallel", "memory_bytes_per_rank"):
                raise
            return None

    for name, sizes in (("widths", widths), ("batches", batches)):
        for size in sizes:
            require_whole(name, size, 1)
    require_whole("ranks", ranks, 1)
    grids = tuple(tuple(cell(width, batch) for batch in batches) for width in widths)
    return GridMap(f"{ranks} ranks: {title}", ranks, tuple(widths), tuple(batches), grids)


def grid_map_picture(maps: Sequence[GridMap], file_format: str) -> bytes:
    """Draw maps of the best grid one below the other, one cell for each width and minibatch.

    The colour is the share of the batch axis in lg P: dark for batch, light for model parallelism.

    Parameters
    ----------
    file_format : str
        One of `hybridnn.drawing.figures.FORMATS`.
    """
    longest = max(len(name) for found in maps for names in found.names() for name in names)
    width = max(COLUMN, 0.8 + (longest + 1) * CHARACTER * len(maps[0].batches))
    height = (0.9 + 0.22 * len(maps[0].widths)) * len(maps)
    figure = new_figure(width, height)
    for axes, found in zip(figure.subplots(len(maps), 1, squeeze=False)[:, 0], maps, strict=True):
        _draw_grid_map(axes, found)
    return figure_bytes(figure, file_format)


def _draw_grid_map(axes: Axes, found: GridMap) -> None:
    shares = np.array([[np.nan if grid is None else found.batch_share(grid) for grid in row] for row in found.grids])
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.4, aspect="auto", origin="lower")
    for row, names in enumerate(found.names()):
        for column, name in enumerate(names):
            axes.text(column, row, name, ha="center", va="center", color=ON_LIGHT)
    axes.set_xticks(range(len(found.batches)), [f"{batch:,}" for batch in found.batches])
    axes.set_yticks(range(len(found.widths)), [f"{width:,}" for width in found.widths])
    axes.set_xlabel("minibatch")
    axes.set_ylabel("width")
    axes.set_title(found.title)
    tidy(axes, grid=False)
