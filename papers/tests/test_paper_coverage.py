"""What the page of the papers' coverage names exists: files, code, commands, methods, settings, studies, measures."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter

from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.study_file import load_study, ready_studies
from hybridnn_papers.measures import MEASURES
from reference.pages import ROOT, reference_pages

TEXT = (ROOT / "papers" / "docs" / "coverage.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", TEXT)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| place ")
]
STATE = re.compile(r"faithful(?:$|; .|, with: .)|differs: .|not reproduced: .")


def named_after(words: str) -> set[str]:
    """The code that follows one of the words, several with commas between them."""
    lists = re.findall(rf"\b(?:{words}) ((?:`\w+`(?:, )?)+)", TEXT)
    return {name for found in lists for name in re.findall(r"\w+", found)}


def test_every_row_has_a_state() -> None:
    assert len(ROWS) > 70
    assert [row for row in ROWS if len(row) != 3 or not STATE.match(row[2])] == []
    assert all(row[0] for row in ROWS)


def test_files_exist() -> None:
    named = {name for name in CODE if "/" in name and " " not in name}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_code_is_in_its_module() -> None:
    named = re.findall(r"`([\w.]+)` in `(?:papers/)?(hybridnn\w*/[\w/]+)\.py`", TEXT)
    assert len(named) > 30
    for name, path in named:
        attrgetter(name)(import_module(path.replace("/", ".")))


def test_commands_and_their_options_exist() -> None:
    page = reference_pages.command_line()
    sections = dict(re.findall(r"^## hybridnn ([\w -]+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    named = [name.removeprefix("hybridnn ") for name in CODE if name.startswith("hybridnn ")]
    assert len(named) > 20
    for name in named:
        command = max((known for known in sections if f"{name} ".startswith(f"{known} ")), key=len)
        options = re.findall(r"(?<= )--[\w-]+", name)
        assert [option for option in options if not re.search(f"`{option}[` ]", sections[command])] == [], name
        if command == "schedule":
            assert name.split()[1] in METHODS


def test_methods_settings_and_measures_exist() -> None:
    settings = {row.name for row in reference_pages.settings()}
    sections = {name.partition(".")[0] for name in settings}
    named = {found[0] for name in CODE if (found := re.match(r"[a-z]+\.\w+", name)) and "/" not in name}
    named = {name for name in named if name.partition(".")[0] in sections}
    assert len(named) > 15
    assert named <= settings
    assert len(named_after("measures?")) > 10
    assert named_after("measures?") <= set(MEASURES)
    assert named_after("methods?") == {"sequential", "ddg", "fr", "pipedream"} <= set(METHODS)


def test_every_ready_study_is_named_and_no_other() -> None:
    named = {name for name in CODE if re.fullmatch(r"(chen|kang|laugier)-[a-z0-9-]+", name)}
    assert named == {name for name in ready_studies() if load_study(name).keys.paper}


def test_every_pipeline_method_has_an_author_a_year_and_a_title() -> None:
    page = (ROOT / "papers" / "docs" / "index.md").read_text(encoding="utf-8")
    section = page.split("\n## Pipeline methods\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))
    assert set(rows) == set(METHODS)
    for name, source in rows.items():
        assert re.search(r"[A-Z]\w+( et al\.| and \w+)? (19|20)\d\d[ab]?, \*[^*]{20,}\*", source), name
