"""A notebook in which a student writes: its cells are the files that are checked and handed in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course.tests.made import handed_out
from hybridnn.errors import DataError
from hybridnn_course.notebook import update_files
from hybridnn_course.work_folder import WorkFolder, unwritten
from reference.command_line import Run, error_line

BOUNDS = """\
# blocks.py
%timeit pass
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)
"""


def test_cells_become_the_files_that_are_checked_and_handed_in(run_hybridnn: Run, tmp_path: Path) -> None:
    assert run_hybridnn("course", "start", handed_out("a2", tmp_path), "work", "--notebook")[0] == 0
    notebook = tmp_path / "work/a2.ipynb"
    content = json.loads(notebook.read_text())
    sources = ["".join(cell["source"]) for cell in content["cells"]]
    (number,) = (number for number, text in enumerate(sources) if "def block_bounds" in text)
    assert sources[number].startswith("# blocks.py\n")
    assert run_hybridnn("course", "check", "bounds", "--folder", "work")[0] == 1  # the cells are stubs
    content["cells"][number]["source"] = BOUNDS
    content["cells"].append({"cell_type": "code", "metadata": {}, "source": ["block_bounds(10, 4, 0)"], "outputs": []})
    notebook.write_text(json.dumps(content))
    code, out, err = run_hybridnn("course", "check", "bounds", "-q", "--folder", "work")
    assert (code, out) == (0, "9 of 9 points; hidden cases are worth 11 more\n"), err
    _, packed = WorkFolder.open(tmp_path / "work").submission()
    text = packed["blocks.py"].decode()
    assert text.startswith("# Written from a2.ipynb, change it there (")
    assert "timeit" not in text
    assert "block_bounds(10, 4, 0)" not in text
    assert "bounds" not in unwritten(WorkFolder.open(tmp_path / "work"))
    (tmp_path / "work/blocks.py").write_text(f"{text}\nx = 1\n")
    line = error_line(run_hybridnn("course", "check", "--folder", "work"))
    assert "blocks.py: was changed by hand; move the change into a2.ipynb" in line


def test_a_notebook_without_a_cell_of_a_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a2.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]}))
    with pytest.raises(DataError, match=r"a2.ipynb: has no cell whose first line is # blocks.py"):
        update_files(path, ["blocks.py"])
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "# block.py\nx = 1"}]}))
    with pytest.raises(DataError, match=r"a2.ipynb: has a cell of block.py; the files are blocks.py"):
        update_files(path, ["blocks.py"])
    path.write_text("[]")
    with pytest.raises(DataError, match="is not a notebook"):
        update_files(path, ["blocks.py"])
