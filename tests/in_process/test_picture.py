"""Pictures of the calls of ranks of one process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np

from hybridnn.in_process import run_ranks
from hybridnn.in_process.source_lines import Site

SVG = "{http://www.w3.org/2000/svg}"


def test_collectives_alone_fill_the_width_and_are_named() -> None:
    def program(comm: Any) -> None:
        for _ in range(3):
            comm.Allreduce("IN_PLACE", np.ones(1000))

    picture = ElementTree.fromstring(run_ranks(2, program, alpha=1e-6)._repr_svg_())
    boxes = [box for box in picture.iter(f"{SVG}rect") if box.get("fill") == "#b79ad6" and box.get("height") == "26"]
    assert len(boxes) == 6
    first = sorted((float(box.attrib["x"]), float(box.attrib["width"])) for box in boxes)[::2]
    for (x, width), (following, _) in pairwise(first):
        assert width > 200
        assert abs(x + width - following) < 0.01
    assert all(box.get("stroke") == "#ffffff" for box in boxes)  # adjacent boxes are separated
    assert [text.text for text in picture.iter(f"{SVG}text")].count("allreduce") == 6


def test_a_cell_of_a_notebook_is_named_as_such() -> None:
    code = compile("def work(comm):\n    pass\n", "/tmp/ipykernel_4711/1234567.py", "exec")
    assert str(Site(code.co_consts[0], 2)) == "cell:2 in work"
