"""HTML renderer of animations: one page that plays a schedule in a browser, and loads nothing.

The page is made of the files in the folder `page`: its structure, its style and its program.
"""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from hybridnn.drawing.animation import Animation
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
    drawing, kinds = animation.drawing, list(KINDS)
    facts = {
        "title": drawing.title,
        "unit": drawing.unit,
        "unitName": animation.unit_name,
        "numbering": drawing.numbering,
        "versions": drawing.versions,
        "makespan": drawing.makespan,
        "pace": readable_duration(drawing),
        "kinds": [vars(kind) for kind in KINDS.values()],
        "rows": [
            {
                "label": row.label,
                "boxes": [[box.start, box.end, kinds.index(box.kind), box.label, box.version] for box in row.boxes],
            }
            for row in drawing.rows
        ],
        "stages": [stage._asdict() for stage in animation.stages],
        "messages": [[*item[:2], int(item.gradients), *item[3:]] for item in animation.messages],
    }
    rounded: dict[str, Any] = _rounded(facts)
    return rounded


def _rounded(value: Any) -> Any:
    """Times to nine digits: equal ones remain equal, and the page stays small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
