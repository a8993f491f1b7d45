"""Execution of notebooks of ``docs/`` with additional cells, and what their cells printed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpi_runner.slowness import deadline
from reference.pages import outputs

__all__ = ["executed", "printed", "quiet_kernel", "with_cells"]


def quiet_kernel(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep the files of Jupyter in a folder."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(folder / name))


def executed(text: str) -> str:
    """A notebook with new outputs."""
    written: str = outputs.run_notebook(text, limit=deadline(120))
    return written


def with_cells(text: str, *sources: str) -> str:
    """A notebook with additional cells at its end."""
    notebook = json.loads(text)
    notebook["cells"].extend(_cells(sources))
    return json.dumps(notebook)


def _cells(sources: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for number, source in enumerate(sources):
        yield {
            "cell_type": "code",
            "id": f"last-{number}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": source,
        }


def printed(cell: dict[str, Any]) -> str:
    """The text that a cell printed."""
    return "".join("".join(output.get("text", ())) for output in cell.get("outputs", ()))
