"""Hooks of MkDocs: what the site contains besides the pages of docs/.

The start page is README.md, notebooks become pages, and three schedules are pages that play. Files outside docs/ that a
page links are copied to the folder ``repository`` of the site.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from reference_pages import ANIMATIONS, animation  # noqa: E402  # beside this file, which MkDocs loads by its path

LINK = re.compile(r"(?P<start>\]\()(?P<target>[^)#\s:]+)(?P<end>(?:#[^)]*)?\))")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r"""(?:<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|srcset|data)\s*=\s*["']?"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*?\bhref=["']?"""
    r"""|@import\s+["']?|url\(\s*["']?)(?P<address>(?:https?:)?//[^"'\s)>]+)"""
)
"""What a browser loads by itself from another site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the start page, the notebooks, the schedules that play, and the files outside docs/ that pages link."""
    pending = {"index.md": ROOT / "README.md"}
    for notebook in DOCS.rglob("*.ipynb"):
        pending[notebook.relative_to(DOCS).with_suffix(".md").as_posix()] = notebook
    for page in DOCS.rglob("*.md"):
        for source in _linked(page.read_text(encoding="utf-8"), page.parent):
            pending.setdefault(_place(source), source)
    for place in ANIMATIONS:
        files.append(File.generated(config, place, content=animation(place)))
    added: set[str] = set()
    while pending:
        place, source = pending.popitem()
        if place in added or files.get_file_from_path(place) is not None:
            continue
        added.add(place)
        if source.suffix == ".ipynb":
            files.append(File.generated(config, place, content=_notebook_page(source, place)))
        elif source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
            files.append(File.generated(config, place, content=_relinked(text, source.parent, place)))
            pending |= {_place(linked): linked for linked in _linked(text, source.parent)}
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to files outside docs/."""
    place = page.file.src_uri
    source = DOCS / place
    return _relinked(markdown, source.parent, place) if source.exists() else markdown


def _place(source: Path) -> str:
    """Path in the site of a file of the repository."""
    if source.suffix == ".ipynb":
        source = source.with_suffix(".md")
    if source.is_relative_to(DOCS):
        return source.relative_to(DOCS).as_posix()
    if source == ROOT / "README.md":
        return "index.md"
    return f"repository/{source.relative_to(ROOT).as_posix()}"


def _links(text: str) -> Iterator[re.Match[str]]:
    """Relative links of a page, without those in code."""
    code = [found.span() for found in CODE.finditer(text)]
    for found in LINK.finditer(text):
        if not any(start <= found.start() < end for start, end in code):
            yield found


def _linked(text: str, folder: Path) -> Iterator[Path]:
    """Files outside docs/ that a page in a folder links."""
    for found in _links(text):
        source = (folder / found["target"]).resolve()
        if source.is_file() and source.is_relative_to(ROOT) and not source.is_relative_to(DOCS):
            yield source


def _relinked(text: str, folder: Path, place: str) -> str:
    """A page with the links that it needs at its place in the site."""
    parts, at = [], 0
    for found in _links(text):
        source = (folder / found["target"]).resolve()
        if source.is_file():
            target = os.path.relpath(_place(source), Path(place).parent)
            parts += [text[at : found.start("target")], target]
            at = found.end("target")
    return "".join([*parts, text[at:]])


def _notebook_page(notebook: Path, place: str) -> str:
    """A notebook as Markdown, with the outputs that it holds."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_relinked(source, notebook.parent, place))
        else:
            parts += [_fenced(source, "python"), *map(_shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """An output of a cell: a picture, or its text."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        # In a block element, what looks like Markdown in a picture remains as it is.
        return f"<div>\n{''.join(data['image/svg+xml']).rstrip()}\n</div>"
    return _fenced("".join(output.get("text", data.get("text/plain", ""))).rstrip(), "text")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads anything from another one.

    Raises
    ------
    PluginError
        With the files and addresses.
    """
    site = Path(config.site_dir)
    found = []
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        found += [f"{file.relative_to(site)}: {match['address']}" for match in LOADED.finditer(text)]
    if found:
        raise PluginError("\n".join(["loaded from another site:", *found]))
