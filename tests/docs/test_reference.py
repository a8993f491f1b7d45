"""The parts of the site that are generated from the package, and the settings file in the page of settings."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from hybridnn.config.settings import Settings
from reference.pages import ROOT, reference_pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = [row for section in reference_pages.settings().values() for row in section]


def test_every_setting_is_described() -> None:
    assert [row.name for row in ROWS if not row.description or not row.allowed] == []
    assert len({row.name for row in ROWS}) == len(ROWS) > 60


@pytest.mark.parametrize(
    ("name", "allowed", "default"),
    [
        ("training.epochs", "integer ≥ 1", "`10`"),
        ("training.checkpoint_every", "integer or text", ""),
        ("optimizer.momentum", "number ≥ 0, < 1", "`0.9`"),
        ("optimizer.betas", "2 × number ≥ 0, < 1", "`[0.9, 0.999]`"),
        ("model.hidden", "list of integer ≥ 1", "`[256, 256]`"),
        ("data.synthetic.task", '`"regression"`, `"classification"`', '`"regression"`'),
        ("parallel.overlap", '`"auto"`, `true`, `false`', '`"auto"`'),
    ],
)
def test_types_and_defaults_are_those_of_the_models(name: str, allowed: str, default: str) -> None:
    (row,) = [row for row in ROWS if row.name == name]
    assert (row.allowed, row.default) == (allowed, default)


def test_the_settings_file_of_the_page_has_every_default() -> None:
    page = (ROOT / "docs" / "use" / "settings.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    given = tomllib.loads(text)
    shown = Settings.model_validate(given)
    assert shown == Settings()
    commented = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    assert {row.name.rpartition(".")[2] for row in ROWS} <= commented


def test_every_command_is_described() -> None:
    text = reference_pages.command_line()
    names = re.findall(r"^## (hybridnn .*)$", text, re.MULTILINE)
    assert {"hybridnn train", "hybridnn data fetch", "hybridnn study submit"} <= set(names)
    for name in ("train", "study run", "schedule"):
        shown = subprocess.run(
            [sys.executable, "-m", "hybridnn", *name.split(), "--help"], capture_output=True, text=True, check=True
        ).stdout
        options = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)(?= )", shown)) & set(
            re.findall(r"`(--?[a-z][a-z-]*)`", text)
        )
        (section,) = re.findall(rf"^## hybridnn {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        rows: Any = set(re.findall(r"`(--?[a-z][a-z-]*)`", section))
        assert options - {"--help"} <= rows | {"-m", "-n"}, name


def test_table_of_algorithms_has_a_row_for_every_line() -> None:
    rows = [line for line in reference_pages.algorithms().splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert {row.count("|") for row in rows} == {6}
