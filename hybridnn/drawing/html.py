"""HTML renderer of animations: one page that plays a schedule in a browser, and loads nothing.

The page is made of the files in the folder `page`: its structure, its style and its program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from hybridnn.drawing.animation import Animation, Stored
from hybridnn.drawing.drawing import KINDS, readable_duration
from hybridnn.errors import SettingError
from hybridnn.utils.text import to_json

PROGRAM = ("state", "sentences", "colours", "stages", "chart", "figures", "player")  # files, in this order
TEXT_WIDTH, TEXT_BANDS = 100, 40  # of the drawing that browsers without JavaScript show


def write_html(animation: Animation, path: str | Path) -> None:
    """Write the page of an animation.

    Raises
    ------
    SettingError
        If it cannot be written, or its name does not end with .html.
    """
    require_html("page", path)
    try:
        Path(path).write_text(html_page(animation), encoding="utf-8")
    except OSError as error:
        raise SettingError("page", str(path), f"cannot be written: {error.strerror}") from error


def require_html(name: str, path: str | Path) -> None:
    """Raise `SettingError` unless a file's name ends with .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise SettingError(name, str(path), "the page is HTML: a name that ends with .html")


def html_page(animation: Animation) -> str:
    """Make the page: one file, which loads nothing."""
    from hybridnn.drawing.text import text_lines

    parts = files("hybridnn.drawing") / "page"
    lines = text_lines(animation.drawing, TEXT_WIDTH, TEXT_BANDS)
    # "<" would end the script, or begin a comment in it.
    content = {
        "title": escape(animation.drawing.title),
        "summary": escape(animation.summary),
        "style": (parts / "page.css").read_text(encoding="utf-8"),
        "text": escape("\n".join(line.plain.rstrip() for line in lines)),
        "data": to_json(_facts(animation)).replace("<", "\\u003c"),
        "program": "\n".join((parts / f"{name}.js").read_text(encoding="utf-8") for name in PROGRAM),
    }
    page = (parts / "page.html").read_text(encoding="utf-8")
    return re.sub(r"{{ (\w+) }}", lambda found: content[found[1]], page)


def _facts(animation: Animation) -> dict[str, Any]:
    """All that the page shows; lists in place of objects, because there are thousands."""
    drawing = animation.drawing
    kinds = list(KINDS)
    return {
        "title": drawing.title,
        "unit": drawing.unit,
        "unitName": animation.unit_name,
        "numbering": drawing.numbering,
        "versions": drawing.versions,
        "makespan": _rounded(drawing.makespan),
        "pace": _rounded(readable_duration(drawing)),
        "kinds": [vars(kind) for kind in KINDS.values()],
        "rows": [
            {
                "label": row.label,
                "boxes": [
                    [_rounded(box.start), _rounded(box.end), kinds.index(box.kind), box.label, box.version]
                    for box in row.boxes
                ],
            }
            for row in drawing.rows
        ],
        "stages": [
            {
                "row": stage.row,
                "weights": _stored(stage.weights),
                "inputs": _stored(stage.inputs),
                "activations": _stored(stage.activations),
                "barriers": [[_rounded(time) for time in span] for span in stage.barriers if span[0] < span[1]],
            }
            for stage in animation.stages
        ],
        "messages": [
            [item.sender, item.receiver, int(item.gradients), item.label]
            + [_rounded(time) for time in (item.start, item.arrival, item.use)]
            for item in animation.messages
        ],
    }


def _stored(items: Sequence[Stored]) -> list[list[str | float]]:
    return [[item.label, _rounded(item.start), _rounded(item.end)] for item in items]


def _rounded(time: float) -> float:
    """A time to nine digits: equal times remain equal, and the page stays small."""
    return float(f"{time:.9g}")
