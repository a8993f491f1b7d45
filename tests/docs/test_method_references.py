"""Every pipeline method has a reference."""

from __future__ import annotations

import re
from pathlib import Path

from hybridnn.pipeline.schedules.methods import METHODS

PAGE = Path(__file__).resolve().parents[2] / "docs/papers/index.md"


def test_every_method_has_an_author_a_year_and_a_title() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Pipeline methods\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))
    assert set(rows) == set(METHODS)
    for name, source in rows.items():
        assert re.search(r"[A-Z]\w+( et al\.| and \w+)? (19|20)\d\d[ab]?, \*[^*]{20,}\*", source), name
