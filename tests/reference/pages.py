"""Import of scripts of ``docs/``, which are not part of a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["ROOT", "man_pages", "outputs", "paper_results", "reference_pages"]

ROOT = Path(__file__).parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


man_pages = _load("man_pages")
outputs = _load("outputs")
paper_results = _load("paper_results")
reference_pages = _load("reference_pages")
