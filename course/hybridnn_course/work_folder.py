"""A student's folder of an assignment: its files, how it is made and read, and how it becomes a submission."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybridnn.errors import DataError, one_line
from hybridnn.utils.files import make_folder, parse_toml, read_bytes, read_text
from hybridnn.utils.settings_models import first_problem
from hybridnn_course.assignment import Assignment, Variant, load_assignment
from hybridnn_course.handout import AI_POLICY, render_handout
from hybridnn_course.stubs import not_written, stub_file
from hybridnn_course.term import Course, Feedback

MANIFEST, HANDOUT = "assignment.toml", "handout.md"
FILE_BYTES = 1 << 20  # of a file of a submission
STUDENT_CHARACTERS = 200  # of a name
ZIP_TIME = (2000, 1, 1, 0, 0, 0)  # so that equal files make equal archives


class Manifest(BaseModel):
    """Content of ``assignment.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    assignment: str
    term: str = ""
    student: Annotated[str, Field(max_length=STUDENT_CHARACTERS)] = ""
    feedback: Feedback = "hints"
    modules: tuple[str, ...] = ()
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
        load_assignment(manifest.assignment).require_variant(manifest.variant)
        return manifest


@dataclass(frozen=True)
class WorkFolder:
    """A folder in which a student works on an assignment."""

    folder: Path
    manifest: Manifest
    assignment: Assignment

    @classmethod
    def open(cls, folder: Path) -> WorkFolder:
        """Read the manifest of a folder; `DataError` if there is none."""
        path = folder / MANIFEST
        if not path.exists():
            raise DataError(f"{path}: no such file; make the folder with: hybridnn course start, and change into it")
        manifest = Manifest.parse(_text_of(path), str(path))
        return cls(folder, manifest, load_assignment(manifest.assignment))

    @property
    def variant(self) -> Variant:
        """The variant of the assignment."""
        return self.manifest.variant

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
        if task.function not in sources[task.file] or not_written(work.assignment, task) in sources[task.file]:
            found.append(task.name)
    texts = work.assignment.texts
    return [*found, *(name for name in texts if _text_of(work.folder / name) == _template(work.assignment, name))]


def _text_of(path: Path) -> str:
    return read_text(path, FILE_BYTES).removeprefix("\ufeff")  # of editors on Windows


def start_files(assignment: Assignment, manifest: Manifest, ai_policy: str = AI_POLICY) -> dict[str, str]:
    """The files that a student gets."""
    variant = manifest.variant
    files = {
        MANIFEST: tomli_w.dumps(manifest.model_dump()),
        HANDOUT: render_handout(assignment, variant, ai_policy, manifest.modules),
        **{name: stub_file(assignment, name, variant) for name in assignment.files},
    }
    return files | {name: _template(assignment, name) for name in assignment.texts}


def _template(assignment: Assignment, name: str) -> str:
    """The text that students get of a file that is not code; empty where they get none."""
    template = assignment.folder() / "templates" / name
    return template.read_text(encoding="utf-8") if template.exists() else ""


def handed_out_files(course: Course, assignment: Assignment, student: str = "") -> dict[str, str]:
    """The files that a student of a course gets; without a name, those that every student gets."""
    manifest = Manifest(
        assignment=assignment.id,
        term=course.settings.term,
        student=student,
        feedback=course.settings.feedback,
        modules=course.settings.modules,
        variant=course.variant(assignment, student),
    )
    return start_files(assignment, manifest, course.ai_policy)


def open_handed_out(path: Path) -> tuple[Manifest, dict[str, str]]:
    """The manifest and the files of a zip file that students get; `DataError` if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, 8 * FILE_BYTES))) as archive:
            names = archive.namelist()
            if MANIFEST not in names or any("/" in name or name.startswith(".") for name in names):
                raise DataError(f"{path}: is not the zip file of an assignment")
            files = {}
            for name in names:
                with archive.open(name) as file:
                    files[name] = file.read(FILE_BYTES).decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise DataError(f"{path}: is not a readable zip file: {one_line(str(error))}") from None
    manifest = Manifest.parse(files[MANIFEST], f"{path}, {MANIFEST}")
    wanted = {MANIFEST, HANDOUT, *(assignment := load_assignment(manifest.assignment)).files, *assignment.texts}
    if set(names) != wanted:
        raise DataError(
            f"{path}: has the files {', '.join(sorted(names))}; an assignment has {', '.join(sorted(wanted))}"
        )
    return manifest, files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a student into a new or empty folder; `DataError` if one of them exists."""
    for name in files:
        if (folder / name).exists():
            raise DataError(f"{folder / name}: exists already; nothing was written")
    make_folder(folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


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
