"""Selection of cases by their names, so that every grid still has every value of every option."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

from reference.cases import Case

__all__ = ["half", "settings_of"]

OPTIONS = ("overlap", "residual", "model_split", "distribution", "bucket_bytes", "few_outputs")
"""Options of which each grid keeps every value; of the methods, all grids together keep every one."""

Named = TypeVar("Named")


def settings_of(name: str) -> Mapping[str, str]:
    """Settings of a case with the name ``grid | key=value, key=value, Case(…)``; unnamed ones have their defaults."""
    defaults = {key: str(value) for key, value in vars(Case()).items()} | {"few_outputs": "False"}
    return defaults | dict(re.findall(r"(\w+)='?([^',()]+)", name.partition(" | ")[2]))


def half(cases: Mapping[str, Named], seed: str) -> dict[str, Named]:
    """Draw half of the cases, by name, and add those without which a grid would lack a value of an option."""
    drawn = Random(seed).sample(sorted(cases), len(cases))
    chosen, rest = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    covered = _values(chosen)
    for name in rest:
        if new := _values([name]) - covered:
            chosen.append(name)
            covered |= new
    return {name: case for name, case in cases.items() if name in chosen}


def _values(names: Sequence[str]) -> set[tuple[str, str, str]]:
    """Grid, option and value of all cases."""
    found = set()
    for name in names:
        settings = settings_of(name)
        grid = name.partition(" | ")[0]
        found |= {(grid, option, settings[option]) for option in OPTIONS if option in settings}
        found.add(("", "method", settings.get("method", "")))
    return found
