"""Maps of the best process grid over width and minibatch: where batch, model or integrated parallelism is fastest.

This is the first future work of Laugier et al. 2018, section 10: the thresholds of model and data size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2

from hybridnn.cost.machine import Machine
from hybridnn.cost.plan import best_exact
from hybridnn.cost.prediction import Workload
from hybridnn.errors import GridError, SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.utils.checks import require_whole
from hybridnn_papers.formulas import best_grid

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
