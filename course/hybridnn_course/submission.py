"""Submissions as they arrive: refuse what cannot be graded, and note what a person should look at.

Everything that is read has a limit: of entries, bytes, nodes and levels of nesting, and of the time in all.
"""

from __future__ import annotations

import ast
import io
import re
import stat
import warnings
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridnn.errors import DataError, HybridnnError, one_line, shorten
from hybridnn_course.assignment import Assignment
from hybridnn_course.case_file import CASES
from hybridnn_course.flagged_code import code_flags
from hybridnn_course.work_folder import FILE_BYTES, HANDOUT, MANIFEST, ZIP_ERRORS, Manifest, read_entry

MOST_ENTRIES = 10_000
CODE_BYTES = 1 << 18
MOST_NODES = 20_000  # statements and expressions of a file
SHOWN = 200  # characters of the names of files
MOST_LEVELS = 100  # of nested expressions and statements: the functions that compare code are recursive
IGNORED = re.compile(r"(^|/)(__MACOSX/|__pycache__/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)")
"""Files that file managers and Python add."""


class UngradableError(DataError):
    """A submission that cannot be graded; it costs no attempt. The student is empty where it names none."""

    def __init__(self, reason: str, student: str = "") -> None:
        super().__init__(reason)
        self.student = student


@dataclass(frozen=True)
class Submission:
    """A submission that can be graded.

    Attributes
    ----------
    manifest : Manifest
        What the submission says about itself: the grader decides about the variant.
    files : dict
        Texts of the code files.
    flags : tuple of str
        What a person should look at.
    """

    manifest: Manifest
    files: dict[str, str]
    flags: tuple[str, ...]


def read_submission(
    assignment: Assignment, data: bytes | Mapping[str, bytes], modules: Collection[str] = (), python: str = ""
) -> Submission:
    """Read a zip file, or files by their paths; `UngradableError` where it cannot be graded.

    Parameters
    ----------
    modules : collection of str
        Modules that the course allows besides those that every submission may import.
    python : str
        Version whose syntax the code must have; by default that of this Python.
    """
    entries = _unpacked(assignment, data) if isinstance(data, bytes) else data
    if len(entries) > MOST_ENTRIES:
        raise UngradableError(f"more than {MOST_ENTRIES:,} files")
    chosen = chosen_files(assignment, entries)
    found = {name: entries[path] for name, path in chosen.items()}
    # Some pack the whole folder that they were given.
    given = {path for path in entries if IGNORED.search(path) or path.rpartition("/")[2] in (HANDOUT, CASES)}
    further = sorted(entries.keys() - chosen.values() - given)
    manifest = _manifest(assignment, found[MANIFEST]) if MANIFEST in found else None
    try:
        sources, flags = _code(assignment, found, further, modules, python)
    except UngradableError as error:
        raise UngradableError(str(error), manifest.student if manifest else "") from None
    assert manifest is not None, "its file is one of those that are wanted"
    return Submission(manifest, sources, flags)


def _code(
    assignment: Assignment, found: Mapping[str, bytes], further: Sequence[str], modules: Collection[str], python: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The code files, and what a person should look at."""
    for name in (wanted := _wanted(assignment)):
        if name not in found:
            there = shorten(one_line(", ".join(sorted([*found, *further]))), SHOWN) or "no file"
            consists = f"{assignment.id} consists of {', '.join(wanted)}"
            raise UngradableError(f"{name}: is missing; {consists}, and the submission has {there}")
    sources = {name: _text(name, found[name], CODE_BYTES) for name in assignment.files}
    for name in assignment.texts:
        _text(name, found[name])  # which a person reads
    flags = [flag for name, text in sources.items() for flag in file_flags(assignment, name, text, modules, python)]
    if further:
        flags.append(f"further files, which are ignored: {shorten(one_line(', '.join(further)), SHOWN)}")
    return sources, tuple(dict.fromkeys(flags))


def _manifest(assignment: Assignment, content: bytes) -> Manifest:
    try:
        manifest = Manifest.parse(_text(MANIFEST, content))
    except UngradableError:
        raise
    except HybridnnError as error:
        raise UngradableError(str(error)) from None
    if manifest.assignment != assignment.id:
        raise UngradableError(f"it is a submission of {manifest.assignment}, not of {assignment.id}")
    return manifest


def file_flags(
    assignment: Assignment, name: str, text: str, modules: Collection[str] = (), python: str = ""
) -> list[str]:
    """What a person should look at in a code file; `UngradableError` where it is not a program."""
    return list(code_flags(assignment, name, parsed_code(name, text, python), modules))


def _wanted(assignment: Assignment) -> tuple[str, ...]:
    return (MANIFEST, *assignment.files, *assignment.texts)


def chosen_files(assignment: Assignment, paths: Iterable[str]) -> dict[str, str]:
    """Paths of the files of an assignment by their names: those in the outermost folder that has a manifest.

    `UngradableError` where several folders are the outermost one: nothing says which is finished.
    """
    there = [path for path in paths if not IGNORED.search(path)]
    folders = [path.removesuffix(MANIFEST) for path in there if path.rpartition("/")[2] == MANIFEST]
    outermost = [one for one in folders if one.count("/") == min(one.count("/") for one in folders)]
    if len(outermost) > 1:
        names = shorten(one_line(", ".join(sorted(outermost))), SHOWN)
        raise UngradableError(f"it has several folders of the assignment: {names}; hand in one of them")
    folder = outermost[0] if outermost else ""
    return {name: folder + name for name in _wanted(assignment) if folder + name in there}


def _unpacked(assignment: Assignment, data: bytes) -> dict[str, bytes]:
    """The files of an archive by their paths; empty where they are none of the assignment."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()][: MOST_ENTRIES + 1]
            chosen = chosen_files(assignment, map(_path, entries))
            for entry in entries:
                path = _path(entry)
                if path not in chosen.values():
                    found.setdefault(path, b"")
                    continue
                name = path.rpartition("/")[2]
                if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                    raise UngradableError(f"{name}: links and encrypted files are not allowed")
                if path in found:
                    raise UngradableError(f"{name}: is there twice")
                found[path] = read_entry(archive, entry, FILE_BYTES + 1)
    except ZIP_ERRORS as error:
        raise UngradableError(f"it is not a readable zip file: {one_line(str(error))}") from None
    return found


def _path(entry: zipfile.ZipInfo) -> str:
    return entry.filename.replace("\\", "/")  # old tools of Windows write the other slash


def _text(name: str, content: bytes, limit: int = FILE_BYTES) -> str:
    if len(content) > limit:
        raise UngradableError(f"{name}: larger than {limit:,} bytes")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UngradableError(f"{name}: is not text in UTF-8: {error}") from None


def parsed_code(name: str, text: str, python: str = "") -> ast.Module:
    """The syntax tree of a code file; `UngradableError` where it is none, or beyond the limits.

    What only a version newer than `python` can parse is refused, where this Python knows it.
    """
    version = tuple(map(int, python.split("."))) if python else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name, feature_version=version)  # type: ignore[arg-type]  # of two numbers
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UngradableError(f"{name}{line}: cannot be parsed: {one_line(reason)}") from None
    level: list[ast.AST] = [tree]
    count = 0
    for _ in range(MOST_LEVELS):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        count += len(level)
    if level:
        raise UngradableError(f"{name}: code nested in more than {MOST_LEVELS} levels")
    if count > MOST_NODES:
        raise UngradableError(f"{name}: more than {MOST_NODES:,} statements and expressions")
    return tree
