"""The parts of the site that are generated from the package."""

import inspect
import json
import re
import shutil
import subprocess
from dataclasses import fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import get_type_hints

import pytest

import hybridnn
from hybridnn.cli.main import application, main
from hybridnn.data import TableOptions
from hybridnn.study.axes import AXES
from hybridnn.study.cells import make_cells
from hybridnn.study.study_file import load_study
from hybridnn.utils.checks import description
from mpi_runner.slowness import deadline
from reference.pages import ROOT, man_pages, reference_pages

ROWS = {row.name: row for row in reference_pages.settings()}


def test_every_setting_key_and_axis_is_described() -> None:
    tables = (list(ROWS.values()), 60), (reference_pages.study_keys(), 10), (reference_pages.statement_keys(), 10)
    for rows, least in tables:
        assert [row.name for row in rows if not row.description or not row.allowed] == []
        assert len(rows) > least
    table = reference_pages.study_table()
    for axis in AXES.values():
        assert f"| `{axis.name}` | {axis.label} | " in table
        assert axis.description.endswith(".")


@pytest.mark.parametrize(
    ("name", "allowed", "default"),
    [
        ("training.epochs", "a whole number, at least 1", "`10`"),
        ("training.checkpoint_every", "a whole number of steps, at least 1, or seconds in quotes, as `90 s`", ""),
        ("optimizer.weight_decay", "a number, at least 0", "`0.0`; adamw: `0.01`"),
        ("model.hidden", "a list of values, each a whole number, at least 1", "`[256, 256]`"),
        ("parallel.overlap", "`auto`, true or false", '`"auto"`'),
    ],
)
def test_types_and_defaults_are_those_of_the_program(name: str, allowed: str, default: str) -> None:
    assert (ROWS[name].allowed, ROWS[name].default) == (allowed, default)


@pytest.mark.parametrize("page", reference_pages.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_generated_parts_of_pages_are_those_of_the_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert text == reference_pages.rewritten(text), "python docs/reference_pages.py writes them anew"


def test_settings_and_keys_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, rows in ((("settings",), ROWS.values()), (("study", "keys"), reference_pages.study_keys())):
        with pytest.raises(SystemExit):
            main((*arguments, "--format", "json"))
        printed = json.loads(capsys.readouterr().out)
        assert [vars(row) for row in rows] == printed[: len(rows)]
    for key in ("epochs", "trainig", "optimizer.learning_rate"):
        with pytest.raises(SystemExit):
            main(("settings", key))
    shown = capsys.readouterr()
    assert re.search(r"^setting +training.epochs\nallowed +a whole number, at least 1\ndefault +10$", shown.out, re.M)
    assert shown.err == "".join(
        f"Error: KEY = '{key}': did you mean {near}?\n"
        for key, near in (("trainig", "training"), ("optimizer.learning_rate", "optimizer.lr"))
    )


@pytest.mark.parametrize("width", [20, 40, 80])
def test_names_of_settings_are_whole_at_any_width(width, capsys, monkeypatch) -> None:
    monkeypatch.setattr("hybridnn.cli.output.PLAIN_WIDTH", width)
    with pytest.raises(SystemExit):
        main(("settings", "optimizer"))
    shown = capsys.readouterr().out if width > 20 else "".join(capsys.readouterr().out.split())
    assert all(name in shown for name in ROWS if name.startswith("optimizer."))


def test_descriptions_are_those_of_the_fields() -> None:
    assert ROWS["training.batch_size"].description == "Samples of a minibatch, over all ranks."
    decoupled = r"; of adamw, nadam(, \S+)*: factor of the weights, times lr, subtracted from them\.$"
    assert re.search(decoupled, ROWS["optimizer.weight_decay"].description)
    for kind in (hybridnn.TrainConfig, hybridnn.SGD, hybridnn.Step, hybridnn.DeviceOptions, TableOptions):
        lines = inspect.getdoc(kind).splitlines()  # type: ignore[union-attr]
        for item in fields(kind):
            if item.name not in ("model", "optimizer", "schedule"):
                place = next(number for number, line in enumerate(lines) if line.startswith(f"{item.name} : "))
                assert lines[place + 1] == f"    {description(get_type_hints(kind, include_extras=True)[item.name])}"
                assert lines[place + 1].endswith(".")


def test_the_forms_of_layouts_are_those_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "studies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ([\dx, ]+) \| (\S+) \|$", page.partition("## Layouts")[2], re.MULTILINE)
    assert len(rows) == 6
    for form, grids, method in rows:
        study = tmp_path / "study.toml"
        axes = f"base.model.hidden = [8, 8, 8]\naxes = {{ranks = [8], layouts = [{form}]}}\n"
        study.write_text(f'name = "s"\ncompares = "training"\n{axes}')
        cells = make_cells(load_study(study)).cells
        assert [(c.values["grid"], c.values["method"]) for c in cells] == [(g, method) for g in grids.split(", ")]


@pytest.mark.parametrize("module", ["hybridnn", "hybridnn.data", "hybridnn.in_process", "hybridnn.sklearn"])
def test_page_of_the_python_api_has_every_public_name(module: str) -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: hybridnn(?:\.\w+)*\.(\w+)$", page, re.MULTILINE))
    assert set(import_module(module).__all__) - {"__version__"} <= shown


def test_table_of_algorithms_has_a_row_for_every_line() -> None:
    rows = [line for line in reference_pages.algorithms().splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {6}
    assert all("` (`" in row for row in rows[2:])
    for algorithm, lines in ((1, 15), (2, 16), (3, 18)):
        numbers = re.findall(r"\d+", " ".join(row.split("|")[1 + algorithm] for row in rows[1:]))
        assert set(map(int, numbers)) == set(range(2, lines + 1)), algorithm


def test_table_of_algorithms_names_code_that_exists() -> None:
    text = reference_pages.algorithms()
    for names, place in re.findall(r"((?:`[\w.]+`(?:, )?)+) \(`([\w.]+)`\)", text):
        module = import_module(place if place.startswith("hybridnn") else f"hybridnn.parallel.{place}")
        for name in re.findall(r"[\w.]+", names):
            owner, _, attribute = name.rpartition(".")
            named = attrgetter(owner)(module) if owner else module
            assert hasattr(named, attribute) or attribute in named.__annotations__, f"{place}: {name}"


PAGES: dict[str, str] = dict(man_pages.pages())
TABLES = dict(re.findall(r"^## (hybridnn [\w -]+)$(.*?)(?=^## |\Z)", reference_pages.command_line(), re.M | re.S))


def test_every_command_has_a_page() -> None:
    groups = {f"hybridnn-{group.name}.1" for group in application().registered_groups}
    commands = {f"{name.replace(' ', '-')}.1" for name in TABLES}
    assert set(PAGES) == {"hybridnn.1"} | groups | commands
    for file, page in PAGES.items():
        linked = re.findall(r"\\fB([\w\\-]+)\\fP\(1\)", page)
        assert {f"{name}.1".replace("\\-", "-") for name in linked} <= set(PAGES)
        assert linked or file == "hybridnn.1"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_prints_the_pages_without_warnings() -> None:
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou", "-rLL=200n"]
    everything = "\n".join(PAGES.values())
    done = subprocess.run(command, input=everything, capture_output=True, text=True, timeout=deadline(60))
    assert (done.returncode, done.stderr) == (0, "")
    _, *parts = re.split(r"^(HYBRIDNN[A-Z-]*)\(1\).*\1\(1\)$", done.stdout, flags=re.MULTILINE)
    printed = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(printed) == [file.removesuffix(".1").upper() for file in PAGES]
    for name, text in printed.items():
        command_name = next((known for known in TABLES if known.replace(" ", "-").upper() == name), "")
        options = set(re.findall(r"`(--?[a-z][a-z-]*)`", TABLES.get(command_name, "")))
        assert options <= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.replace("\u2010", "-"))), name
        assert "EXIT STATUS" in text
