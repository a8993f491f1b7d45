"""Runs the reduced form of the ready studies, and copies tables and plots of their reports into ``docs/papers/``.

``make papers`` runs all of them, ``make papers ARGS=laugier-figure-5`` one. Finished cells are not run again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

__all__ = ["main", "reproduce"]

RESULTS = Path(__file__).resolve().parent / "papers"
COPIED = ("tables.md", "*.svg")

Hybridnn = Callable[[Sequence[str]], int]
"""Runs ``hybridnn`` with arguments and returns its exit code."""


def run_hybridnn(arguments: Sequence[str]) -> int:
    """Run the command with the output of this process."""
    return subprocess.run([sys.executable, "-m", "hybridnn", *arguments], check=False).returncode


def reproduce(name: str, results: Path, hybridnn: Hybridnn = run_hybridnn) -> int:
    """Run a study and its report, and copy its tables and plots; returns the first exit code that is not 0.

    A report that cannot be written leaves the copies of an earlier one as they are.
    """
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study

    folder = default_folder(load_study(name, reduced=True))
    ran = hybridnn(["study", "run", name, "--reduced"])
    if ran not in (0, 1):  # 1: some cells failed, and the report says which
        return ran
    if (folder / "report").exists():
        shutil.rmtree(folder / "report")  # plots of an earlier form of the study
    reported = hybridnn(["study", "report", str(folder)])
    files = [file for pattern in COPIED for file in sorted((folder / "report").glob(pattern))]
    if files:
        target = results / name
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, target / file.name)
    return ran or reported


def main(arguments: Sequence[str], results: Path = RESULTS, hybridnn: Hybridnn = run_hybridnn) -> int:
    """Reproduce the named studies, or all; returns the exit code."""
    from hybridnn.errors import SettingError
    from hybridnn.study.study_file import ready_studies

    parser = argparse.ArgumentParser(prog="make papers ARGS=", description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="ready studies; without any, all of them")
    chosen = parser.parse_args(arguments).studies or list(ready_studies())
    unknown = [name for name in chosen if name not in ready_studies()]
    if unknown:
        print(f"Error: {unknown[0]} is not a ready study: {', '.join(ready_studies())}", file=sys.stderr)
        return 2
    codes = []
    for name in chosen:
        start = perf_counter()
        try:
            codes.append(reproduce(name, results, hybridnn))
        except SettingError as error:
            print(f"Error: {error}", file=sys.stderr)
            codes.append(error.exit_code)
        state = "done" if codes[-1] == 0 else f"exit code {codes[-1]}"
        print(f"{name}: {state} after {perf_counter() - start:.0f} s, {results / name}", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
