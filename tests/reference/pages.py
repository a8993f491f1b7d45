"""Import of scripts of ``docs/`` and ``papers/``, which are in no package, and checks of pages and notebooks."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpi_runner.launch import job_environment
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]

TEXTS = {"json", "text", "toml"}
"""Languages of blocks that are not run."""
REASONS = ("by hand", "not in tests")


def _load(name: str, folder: str = "docs") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


man_pages = _load("man_pages")
outputs = _load("outputs")
paper_results = _load("paper_results", "papers")
reference_pages = _load("reference_pages")


def _is_checked(block: outputs.Block) -> bool:
    """Whether a check of the page runs this block."""
    is_run = block.kind in ("session", "commands", "program")
    return is_run and "slurm" not in block.notes and not any(block.texts(option) for option in REASONS)


def has_commands(page: Path) -> bool:
    """Whether a check of the page runs a block."""
    return any(map(_is_checked, outputs.blocks(page.read_text(encoding="utf-8"))))


def run_commands(page: Path) -> None:
    """Commands of the page succeed, with outputs of its shape."""
    # Like the environment of a user, without numbers of threads.
    environment = job_environment(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")))
    limit = deadline(420)  # on a busy machine, a study that compares times trains every disturbed cell thrice
    outputs.run_page(page.read_text(encoding="utf-8"), check=True, environment=environment, limit=limit)


def require_reasons(page: Path) -> None:
    """A block is run by a check, needs a Slurm, is marked with a reason, belongs to a file that is run, or is text."""
    text = page.read_text(encoding="utf-8")
    found = list(outputs.blocks(text))
    given = {note.partition(":")[0] for block in found for note in block.notes}
    assert given <= {"before", "fails", "varies", "numbers vary", "slurm", *REASONS}
    fences = re.findall(r"^[ >]*```", text, re.MULTILINE)
    assert len(fences) == 2 * len(found), "a block is indented, or its first line is not understood"
    commands = "\n".join(block.body for block in found if block.kind in ("session", "commands", "program"))
    for block in found:
        if block.kind == "text":
            assert block.language in TEXTS, f"a block without a language: {block.body[:60]!r}"
        elif block.kind == "file":
            assert Path(block.name).stem in commands, f"{block.name} is not used"
        elif not _is_checked(block) and "slurm" not in block.notes:
            assert any(len(reason) > 5 for option in REASONS for reason in block.texts(option)), block.body[:60]


def quiet_kernel(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep the files of Jupyter in a folder."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(folder / name))


def executed(text: str) -> str:
    """A notebook with new outputs."""
    return outputs.run_notebook(text, limit=deadline(120))


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
