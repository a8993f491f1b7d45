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
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hybridnn.errors import DataError, HybridnnError, one_line, shorten
from hybridnn_course.assignment import Assignment
from hybridnn_course.case_file import CASES
from hybridnn_course.flagged_code import code_flags
from hybridnn_course.work_folder import FILE_BYTES, HANDOUT, MANIFEST, Manifest

MOST_ENTRIES = 10_000
CODE_BYTES = 1 << 18
MOST_NODES = 20_000  # statements and expressions of a file
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
    flags : tuple of str
        What a person should look at.
    """

    manifest: Manifest
    files: dict[str, str]
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
    wanted = (MANIFEST, *assignment.files, *assignment.texts)
    found, further = _unpacked(data, wanted) if isinstance(data, bytes) else (dict(data), [])
    manifest = _manifest(assignment, found[MANIFEST]) if MANIFEST in found else None
    for name in wanted:
        if name not in found:
            there = shorten(one_line(", ".join(sorted([*found, *further]))), SHOWN) or "no file"
            consists = f"{assignment.id} consists of {', '.join(wanted)}"
            raise UngradableError(f"{name}: is missing; {consists}, and the submission has {there}")
    assert manifest is not None, "its file is one of those that are wanted"
    sources = {name: _text(name, found[name], CODE_BYTES) for name in assignment.files}
    for name in assignment.texts:
        _text(name, found[name])  # which a person reads
    flags = [flag for name, text in sources.items() for flag in file_flags(assignment, name, text, modules)]
    if further:
        flags.append(f"further files, which are ignored: {shorten(one_line(', '.join(further)), SHOWN)}")
    return Submission(manifest, sources, tuple(dict.fromkeys(flags)))


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


def file_flags(assignment: Assignment, name: str, text: str, modules: Collection[str] = ()) -> list[str]:
    """What a person should look at in a code file; `UngradableError` where it is not a program."""
    return list(code_flags(assignment, name, parsed_code(name, text), modules))


def _unpacked(data: bytes, wanted: Collection[str]) -> tuple[dict[str, bytes], list[str]]:
    """The wanted files of an archive, which lie in one folder of it, and the names of all others."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir() and not IGNORED.search(_path(entry))]
            if len(entries) > MOST_ENTRIES:
                raise UngradableError(f"{len(entries):,} files in the archive")
            folder = _folder_of_manifest(list(map(_path, entries)))
            found: dict[str, bytes] = {}
            further = []
            for entry in entries:
                path = _path(entry)
                name = path.removeprefix(folder)
                if not path.startswith(folder) or name not in wanted:
                    further += [path] if name not in (HANDOUT, CASES) else []  # some pack the whole folder
                    continue
                if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                    raise UngradableError(f"{name}: links and encrypted files are not allowed")
                if name in found:
                    raise UngradableError(f"{name}: is there twice")
                with archive.open(entry) as file:
                    found[name] = file.read(FILE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise UngradableError(f"it is not a readable zip file: {one_line(str(error))}") from None
    return found, sorted(further)


def _path(entry: zipfile.ZipInfo) -> str:
    return entry.filename.replace("\\", "/")  # old tools of Windows write the other slash


def _folder_of_manifest(paths: Sequence[str]) -> str:
    """The folder of the manifest, with a slash at its end; empty where there is none."""
    folders = [path.removesuffix(MANIFEST) for path in paths if path.rpartition("/")[2] == MANIFEST]
    return min(folders, key=lambda folder: (folder.count("/"), folder), default="")


def _text(name: str, content: bytes, limit: int = FILE_BYTES) -> str:
    if len(content) > limit:
        raise UngradableError(f"{name}: larger than {limit:,} bytes")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UngradableError(f"{name}: is not text in UTF-8: {error}") from None


def parsed_code(name: str, text: str) -> ast.Module:
    """The syntax tree of a code file; `UngradableError` where it is none, or beyond the limits."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name)
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
