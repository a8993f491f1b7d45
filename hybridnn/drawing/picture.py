"""Pictures of drawings as files and in notebooks: SVG, with a tooltip for every box, PNG and PDF."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from hybridnn.drawing.drawing import Drawing
from hybridnn.drawing.figures import require_format
from hybridnn.drawing.layout import ARIAL, DEJAVU, lay_out
from hybridnn.errors import SettingError


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
            Centimetres: see `picture_bytes`.

        Raises
        ------
        SettingError
            If it cannot be written, or its name ends in another way.
        """
        content = picture_bytes(self.drawing, require_format(Path(path)), width)
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise SettingError("picture", str(path), f"cannot be written: {error.strerror}") from error

    def _repr_svg_(self) -> str:
        return svg_text(self.drawing)


def svg_text(drawing: Drawing, width: float | None = None) -> str:
    """The picture as an SVG document: see `picture_bytes`."""
    return picture_bytes(drawing, "svg", width).decode()


def picture_bytes(drawing: Drawing, file_format: str, width: float | None = None) -> bytes:
    """The picture as ``"svg"``, ``"png"`` with 150 dots per inch, or ``"pdf"``.

    Parameters
    ----------
    drawing : Drawing
    file_format : str
        One of `hybridnn.drawing.figures.FORMATS`.
    width : float, optional
        Centimetres, such as 8 for a column of a page. Text then has 6 points, and the labels of boxes at least 5; those
        that do not fit are left out. By default all planned schedules have one scale.
    """
    # The width of a column has no room for the wide letters of the font that browsers take where they have no other.
    character = ARIAL if file_format == "svg" and width is not None else DEJAVU
    return lay_out(drawing, character, width).encoded(file_format)
