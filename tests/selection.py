"""Pytest plugin: the third of the repeated and the rare tests that a run takes, drawn by a seed; tests by request."""

from datetime import date
from hashlib import sha256
from pathlib import Path

import pytest

THIRDS = 3

BY_ITEM = ("sweep", "slow")
BY_FILE = ("slurm", "cluster")
"""Markers of tests that are drawn; the tests of a file on nodes or under Slurm share what is expensive to make."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the draw."""
    group = parser.getgroup("selection of tests")
    drawn = ", ".join(BY_ITEM + BY_FILE)
    group.addoption("--third", action="store_true", help=f"of the tests marked {drawn}, run a third, drawn by --seed")
    group.addoption(
        "--seed",
        type=lambda text: int(text, 16),
        help="hexadecimal number, such as the hash of a commit; numbers that follow one another draw different "
        "thirds (default: the number of the day)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the seed once, before the processes of pytest-xdist start: midnight may pass."""
    if config.option.seed is None:
        config.option.seed = date.today().toordinal()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the line that tells how to repeat the draw."""
    return f"a third of the drawn tests: --seed={config.option.seed:x}" if config.option.third else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Deselect the tests that are not drawn."""
    if not config.option.third:
        return
    files = sorted({_file(item) for item in items if _is_marked(item, BY_FILE)})
    drawn, others = [], []
    for item in items:
        (drawn if _is_drawn(item, files, config.option.seed) else others).append(item)
    items[:] = drawn
    config.hook.pytest_deselected(items=others)


def third_of(name: str, seed: int) -> bool:
    """Return whether `name` is in the third of a seed; every name is in that of one of three consecutive seeds."""
    return int(sha256(name.encode()).hexdigest(), 16) % THIRDS == seed % THIRDS


def _is_drawn(item: pytest.Item, files: list[str], seed: int) -> bool:
    """Return whether a test runs: files by their place among all, since a hash of eight draws six of them at once."""
    if _is_marked(item, BY_FILE):
        return files.index(_file(item)) % THIRDS == seed % THIRDS
    return not _is_marked(item, BY_ITEM) or third_of(item.nodeid, seed)


def _is_marked(item: pytest.Item, names: tuple[str, ...]) -> bool:
    return any(item.get_closest_marker(name) for name in names)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def mark_opt_in(config: pytest.Config, items: list[pytest.Item], folder: Path, marker: str, reason: str) -> None:
    """Mark the tests below a folder, and skip them unless the command line names the marker."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(marker)
            if marker not in config.option.markexpr:
                item.add_marker(pytest.mark.skip(reason=reason))
