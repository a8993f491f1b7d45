"""Manual pages: one of every command, with all its options, and no warning of groff."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from hybridnn.cli.main import application
from mpi_runner.slowness import deadline
from reference.pages import man_pages, reference_pages

PAGES: dict[str, str] = man_pages.pages()
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
@pytest.mark.parametrize("file", PAGES)
def test_groff_prints_a_page_without_warnings(file: str) -> None:
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou", "-rLL=200n"]
    done = subprocess.run(command, input=PAGES[file], capture_output=True, text=True, timeout=deadline(30))
    assert (done.returncode, done.stderr) == (0, "")
    name = file.removesuffix(".1").upper()
    assert done.stdout.lstrip().startswith(f"{name}(1)")
    command_name = next((known for known in TABLES if f"{known.replace(' ', '-')}.1" == file), "")
    options = set(re.findall(r"`(--?[a-z][a-z-]*)`", TABLES.get(command_name, "")))
    printed = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.stdout.replace("\u2010", "-")))
    assert options - printed == set()
    assert "EXIT STATUS" in done.stdout
