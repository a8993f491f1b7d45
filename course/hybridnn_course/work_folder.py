"""A student's folder of an assignment: its files, how it is read, and how it becomes a submission."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybridnn.errors import DataError, EnvironmentProblem, one_line
from hybridnn.utils.files import parse_toml, read_bytes, read_text
from hybridnn.utils.settings_models import first_problem
from hybridnn.utils.text import shown_path
from hybridnn_course.answer_key import AnswerKey
from hybridnn_course.assignment import Assignment, Task, Variant
from hybridnn_course.case_file import CASES, CaseFile

MANIFEST, HANDOUT = "assignment.toml", "handout.md"
FILE_BYTES = 1 << 20  # of a file of a submission
CASES_BYTES = 64 << 20
STUDENT_CHARACTERS = 200  # of a name
ZIP_TIME = (2000, 1, 1, 0, 0, 0)  # so that equal files make equal archives


Feedback = Literal["names", "hints"]
"""What students read: the names of failed checks only, or also their messages and hints."""


class Manifest(BaseModel):
    """Content of ``assignment.toml``; `python` is the version that grades, and the newest whose syntax it reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    assignment: str
    term: str = ""
    student: Annotated[str, Field(max_length=STUDENT_CHARACTERS)] = ""
    feedback: Feedback = "hints"
    modules: tuple[str, ...] = ()
    python: Annotated[str, Field(pattern=r"^(3\.\d{1,3})?$")] = ""
    variant: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str, name: str = MANIFEST) -> Manifest:
        """The manifest of a text; `DataError` if it is none."""
        try:
            manifest = cls.model_validate(parse_toml(text))
        except ValidationError as error:
            raise DataError(f"{name}: {first_problem(error)}") from None
        except ValueError as error:
            raise DataError(f"{name}: is not valid TOML: {error}") from None
        return manifest


@dataclass(frozen=True)
class WorkFolder:
    """A folder in which a student works on an assignment."""

    folder: Path
    manifest: Manifest
    cases: CaseFile

    @classmethod
    def open(cls, folder: Path) -> WorkFolder:
        """Read the manifest and the cases of a folder; `DataError` if there are none."""
        path = folder / MANIFEST
        if not path.exists():
            raise DataError(f"{path}: no such file; make the folder with: hybridnn course start, and change into it")
        manifest = Manifest.parse(_text_of(path), str(path))
        cases = CaseFile.read(read_bytes(folder / CASES, CASES_BYTES), str(folder / CASES))
        if cases.assignment.id != manifest.assignment:
            raise DataError(f"{folder / CASES}: has the cases of {cases.assignment.id}, not of {manifest.assignment}")
        return cls(folder, manifest, cases)

    @property
    def assignment(self) -> Assignment:
        """The assignment."""
        return self.cases.assignment

    @property
    def variant(self) -> Variant:
        """The variant of the assignment."""
        return self.cases.variant

    def key(self, task: Task) -> AnswerKey:
        """Public cases of a task, and the right answers."""
        return self.cases.keys[task.name]

    def sources(self) -> dict[str, str]:
        """Text of every code file; `DataError` if one is missing."""
        return {name: _text_of(self.folder / name) for name in self.assignment.files}

    def paths(self) -> dict[str, str]:
        """Path of every file to hand in."""
        names = (*self.assignment.files, *self.assignment.texts)
        return {name: str((self.folder / name).resolve()) for name in names}

    def submission(self) -> tuple[bytes, dict[str, bytes]]:
        """The archive to hand in, and its files by name."""
        names = (MANIFEST, *self.assignment.files, *self.assignment.texts)
        files = {name: read_bytes(self.folder / name, FILE_BYTES) for name in names}
        return make_archive(files), files


def unwritten(work: WorkFolder) -> list[str]:
    """Tasks whose function is missing, or still the stub, and texts that are those of the templates."""
    sources = work.sources()
    found = []
    for task in work.assignment.tasks:
        if task.function not in sources[task.file] or work.assignment.not_written(task) in sources[task.file]:
            found.append(task.name)
    templates = work.cases.templates.items()
    return [*found, *(name for name, text in templates if _text_of(work.folder / name) == text)]


def _text_of(path: Path) -> str:
    return read_text(path, FILE_BYTES).removeprefix("\ufeff")  # of editors on Windows


ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError)
"""Of zipfile, for what is no archive; `RuntimeError` for an encrypted file."""


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> bytes:
    """At most `limit` bytes of a file in an archive; one of `ZIP_ERRORS` where it cannot be read."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Python decompresses other methods without a limit of memory.
        raise zipfile.BadZipFile(f"{entry.filename} is compressed by another method than deflate")
    with archive.open(entry) as file:
        return file.read(limit)


def open_handed_out(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the files of a zip file that students get; `DataError` if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, CASES_BYTES))) as archive:
            names = archive.namelist()
            if not {MANIFEST, CASES} <= set(names) or any("/" in name or name.startswith(".") for name in names):
                raise DataError(f"{path}: is not the zip file of an assignment")
            limits = {name: CASES_BYTES if name == CASES else FILE_BYTES for name in names}
            files = {name: read_entry(archive, archive.getinfo(name), limit) for name, limit in limits.items()}
        manifest = Manifest.parse(files[MANIFEST].decode("utf-8"), f"{path}, {MANIFEST}")
    except ZIP_ERRORS as error:
        raise DataError(f"{path}: is not a readable zip file: {one_line(str(error))}") from None
    assignment = CaseFile.read(files[CASES], f"{path}, {CASES}").assignment
    wanted = {MANIFEST, HANDOUT, CASES, *assignment.files, *assignment.texts}
    if set(names) != wanted:
        raise DataError(
            f"{path}: has the files {', '.join(sorted(names))}; an assignment has {', '.join(sorted(wanted))}"
        )
    return manifest, files


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it lies in, unless it is there; `EnvironmentProblem` if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(f"{shown_path(path)} cannot be made as a folder: {reason}") from error


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a student into a new or empty folder; `DataError` if one of them exists."""
    for name in files:
        if (folder / name).exists():
            raise DataError(f"{folder / name}: exists already; nothing was written")
    make_folder(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def make_archive(files: Mapping[str, bytes | str], modes: Mapping[str, int] | None = None) -> bytes:
    """A zip file; equal files make equal bytes.

    Parameters
    ----------
    modes : mapping, optional
        Of files that are not plain ones which everybody may read.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, ZIP_TIME)
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return stream.getvalue()


def digest_of(data: bytes) -> str:
    """Digest of a submission, as students and assistants see it."""
    return hashlib.sha256(data).hexdigest()[:16]
