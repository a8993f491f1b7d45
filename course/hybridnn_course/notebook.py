"""A notebook in which a student writes: its cells become the files to hand in.

A cell belongs to the file that its first line names, for example ``# blocks.py``; others are the student's own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hybridnn.errors import DataError
from hybridnn.utils.files import read_json, read_text, write_atomically

NOTEBOOK_BYTES, FILE_BYTES = 64 << 20, 1 << 20  # the first with outputs
FILE_NAME = re.compile(r"#\s*(\S+\.py)")
COMMANDS = ("%", "!")  # beginnings of lines that are for IPython


def new_notebook(title: str, files: Mapping[str, str]) -> bytes:
    """A notebook with a cell for each function of the code files, and one for what precedes them."""
    cells = [_cell("markdown", f"# {title}\n\nThe first line of a cell names the file that it becomes a part of.")]
    for name, text in files.items():
        lines = text.split("\n")
        functions = (node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
        starts = [0, *(node.lineno - 1 for node in functions), len(lines)]
        for start, end in pairwise(starts):
            body = "\n".join(lines[start:end]).strip("\n")
            cells.append(_cell("code", f"# {name}\n{body}"))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def update_files(notebook: Path, names: Collection[str]) -> None:
    """Write the files of these names beside a notebook, where they differ from its cells.

    Raises
    ------
    DataError
        If the file is no notebook, has no cell for one of the names or cells for another one, or if a file was changed
        by hand.
    """
    parts: dict[str, list[str]] = {name: [] for name in names}
    try:
        for cell in read_json(notebook, NOTEBOOK_BYTES)["cells"]:
            source = cell["source"]
            first, _, body = ("".join(source) if isinstance(source, list) else source).partition("\n")
            if cell["cell_type"] == "code" and (named := FILE_NAME.fullmatch(first.strip())):
                lines = (line for line in body.split("\n") if not line.startswith(COMMANDS))
                parts.setdefault(named.group(1), []).append("\n".join(lines).strip("\n"))
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{notebook}: is not a notebook") from None
    if unknown := sorted(parts.keys() - set(names)):
        raise DataError(f"{notebook}: has a cell of {unknown[0]}; the files are {', '.join(names)}")
    for name, texts in parts.items():
        if not texts:
            raise DataError(f"{notebook}: has no cell whose first line is # {name}")
        _write(notebook, notebook.parent / name, "\n\n\n".join(texts) + "\n")


def _write(notebook: Path, path: Path, text: str) -> None:
    """Write a file below a line with the digest of its text, by which a change by hand is seen."""
    if path.exists():
        head, _, old = read_text(path, FILE_BYTES).partition("\n")
        if head != _head(notebook, old):
            raise DataError(f"{path}: was changed by hand; move the change into {notebook.name}, and remove the file")
        if old == text:
            return
    write_atomically(path, f"{_head(notebook, text)}\n{text}".encode())


def _head(notebook: Path, text: str) -> str:
    return f"# Written from {notebook.name}, change it there ({hashlib.sha256(text.encode()).hexdigest()[:8]})."
