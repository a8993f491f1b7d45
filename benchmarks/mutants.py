"""Mutants: small mistakes put into the library one at a time, to see which selection of tests notices them.

::

    python -m pytest -n 0 -m "not slow and not mpi" --cov=hybridnn --cov-context=test ...   # which test runs which line
    python -m benchmarks.mutants draw --count 150 --seed 1 mutants.json
    python -m benchmarks.mutants run mutants.json --tests test --coverage .coverage    # adds the column "test"
    python -m benchmarks.mutants table mutants.json                                    # Markdown

``run`` works on copies of the checkout. A mutant is killed if a test that runs its line fails; all of these tests run
until the first that fails. `--all FOLDER ...` takes every test of folders instead, for tests that start programs.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("nn", "gpu", "comm", "parallel", "pipeline", "training", "checkpoints", "cost")
SECONDS = 900
"""Limit of all tests of one mutant; a mutant that hangs is noticed."""

SWAPS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*"},
    **{ast.And: "or", ast.Or: "and", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}


@dataclass
class Mutant:
    """One replacement in one file.

    Attributes
    ----------
    file : str
        Path below the checkout.
    line : int
        Number of the line in the checkout from which it was drawn.
    text : str
        That line.
    nth : int
        Which of the equal lines of the file it is.
    start, end : int
        Columns of the replaced text.
    new : str
        What stands there instead.
    found : dict
        For each selection of tests, the test that failed, or an empty text.
    """

    file: str
    line: int
    text: str
    nth: int
    start: int
    end: int
    new: str
    found: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """The line with the mistake."""
        return self.text[: self.start] + self.new + self.text[self.end :]

    def line_in(self, lines: Sequence[str]) -> int | None:
        """Number of the line in a version of the file, None if it is not there."""
        equal = [number for number, text in enumerate(lines, 1) if text == self.text]
        return equal[self.nth] if self.nth < len(equal) else None


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw(count: int, seed: int) -> list[Mutant]:
    """Draw mutants, equally many of every package."""
    chosen = []
    for number, package in enumerate(PACKAGES):
        candidates = [
            mutant for path in sorted((ROOT / "hybridnn" / package).rglob("*.py")) for mutant in mutants_of(path)
        ]
        share = count // len(PACKAGES) + (number < count % len(PACKAGES))
        chosen += random.Random(f"{seed} {package}").sample(candidates, share)
    return chosen


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file: in functions, on one line, not in annotations, assertions and messages of errors."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    found = []
    for node in _statements(ast.parse(source)):
        for start, end, line, new in _replacements(node, lines):
            text = lines[line - 1]
            nth = lines[: line - 1].count(text)
            mutant = Mutant(str(path.relative_to(ROOT)), line, text, nth, start, end, new)
            if _compiles(lines, mutant):
                found.append(mutant)
    return found


def _compiles(lines: Sequence[str], mutant: Mutant) -> bool:
    try:
        compile("\n".join([*lines[: mutant.line - 1], mutant.changed, *lines[mutant.line :]]), "mutant", "exec")
    except SyntaxError:
        return False
    return mutant.text.isascii() and mutant.changed != mutant.text  # columns count bytes


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes inside functions that a mutant may change."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if inside:
            yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            children = value if isinstance(value, list) else [value]
            here = inside or isinstance(node, ast.FunctionDef)
            skipped = (ast.Raise, ast.Assert, ast.JoinedStr)
            waiting += [
                (child, here) for child in children if isinstance(child, ast.AST) and type(child) not in skipped
            ]


Replacement = tuple[int, int, int, str]
"""First and last column, line and new text."""


def _replacements(node: ast.AST, lines: Sequence[str]) -> Iterator[Replacement]:
    """Every mistake at a node."""
    if isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _operator(left, right, node.op, lines)
    elif isinstance(node, ast.Compare):
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from _operator(left, right, operator, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield node.col_offset, node.operand.col_offset, node.lineno, ""
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        new = str(not node.value) if type(node.value) is bool else repr(node.value + 1)
        yield node.col_offset, node.end_col_offset or 0, node.lineno, new
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield node.col_offset, node.end_col_offset or 0, node.lineno, {"min": "max", "max": "min"}[node.id]
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        end = node.end_col_offset if node.lineno == node.end_lineno else None
        if end is not None:
            yield node.col_offset, end, node.lineno, "pass"


def _operator(left: ast.expr, right: ast.expr, operator: ast.AST, lines: Sequence[str]) -> Iterator[Replacement]:
    if type(operator) not in SWAPS or left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    sign = between.strip(" ()")
    if sign:
        start = left.end_col_offset + between.index(sign)
        yield start, start + len(sign), right.lineno, SWAPS[type(operator)]


# -- running ---------------------------------------------------------------------------------------------------------


def run(mutants: list[Mutant], name: str, tests_of: Callable[[Mutant, int], list[str]], root: Path, jobs: int) -> None:
    """Run the tests of every mutant that has no result of this name, and store which failed first."""
    waiting = [mutant for mutant in mutants if name not in mutant.found]
    with tempfile.TemporaryDirectory(prefix="hybridnn-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copy = Path(folder) / str(number)
            ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
            shutil.copytree(root, copy, ignore=ignored, symlinks=True)
            copies.put(copy)

        def one(mutant: Mutant) -> None:
            copy = copies.get()
            mutant.found[name] = _first_failure(mutant, tests_of, copy, root)
            copies.put(copy)
            print(
                f"{name}: {mutant.file}:{mutant.line} {mutant.found[name] or 'SURVIVED'}", file=sys.stderr, flush=True
            )

        list(pool.map(one, waiting))


def _first_failure(mutant: Mutant, tests_of: Callable[[Mutant, int], list[str]], copy: Path, root: Path) -> str:
    path = copy / mutant.file
    lines = path.read_text(encoding="utf-8").splitlines()
    line = mutant.line_in(lines)
    if line is None:
        return "not in this version"
    tests = tests_of(mutant, line)
    if not tests:
        return ""
    original = path.read_text(encoding="utf-8")
    path.write_text("\n".join([*lines[: line - 1], mutant.changed, *lines[line:]]) + "\n", encoding="utf-8")
    try:
        return _pytest(tests, copy, root)
    finally:
        path.write_text(original, encoding="utf-8")
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # its times may be equal


def _pytest(tests: Sequence[str], copy: Path, root: Path) -> str:
    """Run tests until one fails; return its name, or an empty text."""
    listed = copy / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    options = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "--timeout=120", "-rf", "--tb=no", "-m", "not slow"]
    command = [str(root / ".venv/bin/python"), "-m", "pytest", *options, f"@{listed}"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    shutil.rmtree(copy / "build", ignore_errors=True)
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "a test that hangs"
    if process.returncode == 0:
        return ""
    if "ERROR: not found: " in output:
        raise RuntimeError(f"the coverage is of other tests than those in {root}: measure it anew")
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.partition(" ")[2].partition(" - ")[0]
    return f"pytest ended with {process.returncode}: {output.strip().splitlines()[-1]}"


def covering(coverage_file: Path) -> Callable[[Mutant, int], list[str]]:
    """Tests that run a line, from a file of coverage with contexts."""
    from coverage import CoverageData

    data = CoverageData(basename=str(coverage_file))
    data.read()
    files = {file[file.rindex("/hybridnn/") + 1 :]: file for file in data.measured_files() if "/hybridnn/" in file}

    def tests(mutant: Mutant, line: int) -> list[str]:
        if mutant.file not in files:
            return []
        contexts = data.contexts_by_lineno(files[mutant.file]).get(line, [])
        return sorted({context.rpartition("|")[0] for context in contexts if "|" in context})

    return tests


# -- reporting -------------------------------------------------------------------------------------------------------


def table(mutants: Sequence[Mutant]) -> str:
    """Killed mutants by package and selection of tests, and the survivors of any, as Markdown."""
    names = list(dict.fromkeys(name for mutant in mutants for name in mutant.found))
    killed = {name: Counter(_package(mutant) for mutant in mutants if mutant.found.get(name)) for name in names}
    drawn = Counter(map(_package, mutants))
    lines = [f"| package | mutants | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
    for package in (*PACKAGES, "all"):
        counts = [sum(killed[name].values()) if package == "all" else killed[name][package] for name in names]
        size = len(mutants) if package == "all" else drawn[package]
        lines.append(f"| {package} | {size} | {' | '.join(map(str, counts))} |")
    lines += ["", f"| survivor | mistake | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for mutant in mutants:
        if not all(mutant.found.get(name) for name in names):
            marks = " | ".join("killed" if mutant.found.get(name) else "survives" for name in names)
            change = f"`{mutant.text.strip()}` → `{mutant.changed.strip()}`".replace("|", "\\|")
            lines.append(f"| `{mutant.file.removeprefix('hybridnn/')}:{mutant.line}` | {change} | {marks} |")
    return "\n".join(lines)


def _package(mutant: Mutant) -> str:
    return mutant.file.split("/")[1]


def main() -> None:
    """Draw, run or report."""
    parser = argparse.ArgumentParser(description="Mutants of the library, and the tests that notice them.")
    parser.add_argument("action", choices=["draw", "run", "table"])
    parser.add_argument("file", type=Path, help="JSON file of the mutants")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", help="name of the selection of tests")
    parser.add_argument("--coverage", type=Path, help="coverage of the selection, with contexts")
    parser.add_argument("--all", nargs="+", help="files and folders of tests, in place of --coverage")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout, with its environment")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--survivors", nargs="*", help="only mutants that survive these selections")
    options = parser.parse_args()
    if options.action == "draw":
        mutants = draw(options.count, options.seed)
    else:
        mutants = [Mutant(**values) for values in json.loads(options.file.read_text(encoding="utf-8"))]
    if options.action == "table":
        print(table(mutants))
        return
    if options.action == "run":
        chosen = [m for m in mutants if all(m.found.get(name) == "" for name in options.survivors or ())]
        tests_of = covering(options.coverage) if options.coverage else lambda mutant, line: list(options.all)
        try:
            run(chosen, options.tests, tests_of, options.root, options.jobs)
        finally:
            _write(options.file, mutants)
        return
    _write(options.file, mutants)


def _write(path: Path, mutants: Sequence[Mutant]) -> None:
    path.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
