"""A notebook in which a student writes: its cells become the files to hand in.

A cell belongs to the file that its first line names, for example ``# blocks.py``; others are the student's own.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hybridnn.errors import DataError
from hybridnn.utils.files import read_json, write_atomically

NOTEBOOK_BYTES = 64 << 20  # with its outputs
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
        If the file is no notebook, or has no cell for one of the names.
    """
    parts: dict[str, list[str]] = {name: [] for name in names}
    try:
        for cell in read_json(notebook, NOTEBOOK_BYTES)["cells"]:
            source = cell["source"]
            first, _, body = ("".join(source) if isinstance(source, list) else source).partition("\n")
            if cell["cell_type"] == "code" and first.lstrip("# ").strip() in parts:
                lines = (line for line in body.split("\n") if not line.startswith(COMMANDS))
                parts[first.lstrip("# ").strip()].append("\n".join(lines).strip("\n"))
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{notebook}: is not a notebook") from None
    for name, texts in parts.items():
        if not texts:
            raise DataError(f"{notebook}: has no cell whose first line is # {name}")
        text = f"# Written from {notebook.name}: change it there.\n" + "\n\n\n".join(texts) + "\n"
        path = notebook.parent / name
        if not path.exists() or path.read_bytes() != text.encode():
            write_atomically(path, text.encode())
