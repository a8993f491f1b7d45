"""The examples of docs/extending.md are the code of the package."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import hybridnn

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_examples_are_in_the_source() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    sources = [path.read_text(encoding="utf-8") for path in Path(hybridnn.__file__).parent.rglob("*.py")]
    assert examples
    for example in examples:
        texts = example.strip(), indent(example.strip(), "    ")  # a row of a table is indented there
        assert any(text in source for source in sources for text in texts), example
