"""Submissions as they arrive: refuse what cannot be graded, and note what a person should look at."""

from __future__ import annotations

import ast
import inspect
import io
import re
import stat
import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hybridnn.errors import DataError, HybridnnError, one_line, shorten
from hybridnn_course.allowed_code import refusals
from hybridnn_course.assignment import Assignment, Task, Variant
from hybridnn_course.injection import find
from hybridnn_course.work_folder import FILE_BYTES, HANDOUT, MANIFEST, Manifest

MOST_ENTRIES = 100
SHOWN = 200  # characters of the names of files
MOST_LEVELS = 100  # of nested expressions and statements: the functions that compare code are recursive
IGNORED = re.compile(r"(^|/)(__MACOSX/|__pycache__/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)")
"""Files that file managers and Python add."""


class UngradableError(DataError):
    """A submission that cannot be graded; it costs no attempt."""


@dataclass(frozen=True)
class Submission:
    """A submission that can be graded.

    Attributes
    ----------
    manifest : Manifest
        What the submission says about itself: the grader decides about the variant.
    files : dict
        Texts of the code files.
    texts : dict
        Other files, for a person or for checks of text.
    flags : tuple of str
        What a person should look at: functions that equal the library's, or the solution.
    """

    manifest: Manifest
    files: dict[str, str]
    texts: dict[str, str]
    flags: tuple[str, ...]


def read_submission(
    assignment: Assignment, data: bytes | Mapping[str, bytes], modules: Collection[str] = ()
) -> Submission:
    """Read a zip file, or files by name; `UngradableError` where it cannot be graded.

    Parameters
    ----------
    modules : collection of str
        Modules that the course allows besides those that every submission may import.
    """
    try:
        files = _unpacked(data) if isinstance(data, bytes) else dict(data)
        manifest = Manifest.parse(_text(MANIFEST, files[MANIFEST])) if MANIFEST in files else None
    except UngradableError:
        raise
    except HybridnnError as error:
        raise UngradableError(str(error)) from None
    if manifest is not None and manifest.assignment != assignment.id:
        raise UngradableError(f"it is a submission of {manifest.assignment}, not of {assignment.id}")
    files = _allowed(assignment, files)
    assert manifest is not None, "its file is one that every submission has"
    sources = {name: _text(name, files[name]) for name in assignment.files}
    texts = {name: _text(name, files[name]) for name in assignment.texts}
    for reason in refused_code(assignment, sources, modules):
        raise UngradableError(reason)
    trees = {name: ast.parse(text, name) for name, text in sources.items()}
    flags = [flag for task in assignment.tasks if task.file in trees for flag in _copies(task, trees[task.file])]
    return Submission(manifest, sources, texts, tuple(dict.fromkeys(flags)))


def refused_code(assignment: Assignment, files: Mapping[str, str], modules: Collection[str] = ()) -> list[str]:
    """What the grader would refuse in code files, each as one line."""
    found: list[str] = []
    for name, text in files.items():
        try:
            found += refusals(assignment, name, _parsed(name, text), modules)
        except UngradableError as error:
            found.append(str(error))
    return found


def _unpacked(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_ENTRIES:
                raise UngradableError(f"{len(entries)} files in the archive")
            found: dict[str, bytes] = {}
            for entry in entries:
                if entry.is_dir() or IGNORED.search(entry.filename):
                    continue
                if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                    raise UngradableError(f"{one_line(entry.filename)}: links and encrypted files are not allowed")
                if entry.filename in found:
                    raise UngradableError(f"{one_line(entry.filename)}: is there twice")
                with archive.open(entry) as file:
                    found[entry.filename] = file.read(FILE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise UngradableError(f"it is not a readable zip file: {one_line(str(error))}") from None
    return _without_folder(found)


def _without_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    """Names without the one folder that all are in, as file managers pack them."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in files}
    if len(folders) == 1 and (folder := next(iter(folders))) and folder not in (".", ".."):
        return {name[len(folder) + 1 :]: content for name, content in files.items()}
    return files


def _allowed(assignment: Assignment, files: Mapping[str, bytes]) -> dict[str, bytes]:
    wanted = (MANIFEST, *assignment.files, *assignment.texts)
    for name in wanted:
        if name not in files:
            there = shorten(one_line(", ".join(sorted(files))), SHOWN) or "no file"
            consists = f"{assignment.id} consists of {', '.join(wanted)}"
            raise UngradableError(f"{name}: is missing; {consists}, and the submission has {there}")
    files = {name: content for name, content in files.items() if name != HANDOUT}  # some pack the whole folder
    for name, content in files.items():
        if name not in wanted:
            raise UngradableError(f"{one_line(name)}: is not a file of {assignment.id}: {', '.join(wanted)}")
        if len(content) > FILE_BYTES:
            raise UngradableError(f"{name}: larger than {FILE_BYTES:,} bytes")
    return files


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UngradableError(f"{name}: is not text in UTF-8: {error}") from None


def _parsed(name: str, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UngradableError(f"{name}{line}: cannot be parsed: {one_line(reason)}") from None
    level: list[ast.AST] = [tree]
    for _ in range(MOST_LEVELS):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise UngradableError(f"{name}: code nested in more than {MOST_LEVELS} levels")
    return tree


def _copies(task: Task, tree: ast.Module) -> Iterator[str]:
    """Whether the student's function is the library's own, or the reference solution."""
    source = _source_of(find(task.target))
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and normal_form(node) == source:
            yield f"{task.name}: {node.name} in line {node.lineno} equals the code of {task.target}"


DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def normal_form(node: ast.AST) -> str:
    """A syntax tree as text, without docstrings, annotations and names."""
    tree = ast.parse(ast.unparse(node))
    for child in ast.walk(tree):
        if isinstance(child, (*DEFINITIONS, ast.Module)) and child.body and _is_text(child.body[0]):
            child.body = child.body[1:] or [ast.Pass()]
        if isinstance(child, ast.FunctionDef):
            child.returns = None
        if isinstance(child, ast.arg):
            child.annotation = None
    if tree.body and isinstance(tree.body[0], DEFINITIONS):
        tree.body[0].name = "name"
    names: dict[str, str] = {}
    for child in ast.walk(tree):
        if isinstance(child, ast.arg):
            child.arg = names.setdefault(child.arg, f"v{len(names)}")
        elif isinstance(child, ast.Name):
            child.id = names.setdefault(child.id, f"v{len(names)}")
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _source_of(function: object) -> str:
    source = textwrap.dedent(inspect.getsource(function))  # type: ignore[arg-type]  # a function or a class
    return normal_form(ast.parse(source).body[0])


def variant_flags(mistakes: tuple[str, ...], variant: Variant) -> tuple[str, ...]:
    """Flags for solutions of other variants."""
    return tuple(f"{name}: solves another variant than {dict(variant)}" for name in mistakes if "variant:" in name)
