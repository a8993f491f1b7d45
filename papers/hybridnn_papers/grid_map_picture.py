"""Pictures of maps of the best grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.drawing.figures import CHARACTER, COLUMN, ON_LIGHT, figure_bytes, new_figure, tidy
from hybridnn_papers.grid_map import GridMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
