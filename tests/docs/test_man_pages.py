"""Manual pages: one of every command, with all its options, and no warning of groff."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from hybridnn.cli.main import application
from mpi_runner.slowness import deadline
from reference.pages import man_pages, reference_pages

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
