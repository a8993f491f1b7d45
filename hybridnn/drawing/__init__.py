"""Everything that draws: schedules, runs, learning curves, cost models, as text, SVG, PNG, PDF and pages."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridnn.drawing.drawing import Drawing


class DrawnObject:
    """Base class of objects with a drawing, which notebooks show."""

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """What the picture shows."""

    def draw(self, path: str | Path, width: float | None = None) -> None:
        """Write the picture as an SVG, PNG or PDF file.

        Parameters
        ----------
        path : str or Path
            A .svg, .png or .pdf.
        width : float, optional
            Centimetres: see `hybridnn.drawing.picture.picture_bytes`.

        Raises
        ------
        SettingError
            If it cannot be written, or its name ends in another way.
        """
        from hybridnn.drawing.figures import write_picture
        from hybridnn.drawing.picture import picture_bytes

        write_picture(path, partial(picture_bytes, self.drawing, width=width))

    def _repr_svg_(self) -> str:
        from hybridnn.drawing.picture import picture_bytes

        return picture_bytes(self.drawing, "svg").decode()
