"""What packages for platforms consist of, and what they have in common."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from hybridnn.course.assignment import Assignment
from hybridnn.course.platforms.installed import installed_wheel
from hybridnn.course.term import KEY, POLICY, SETTINGS, Course
from hybridnn.course.work_folder import handed_out_files, make_archive
from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_choice
from hybridnn.utils.files import read_bytes, read_json
from hybridnn.utils.settings_models import first_problem

Files = Mapping[str, bytes]

INSTRUCTIONS = "autograde.json"
COURSE = "course"  # folder of the course's files in a package
PRIVATE, SCRIPT = 0o100600, 0o100755  # modes of files

Visibility = Literal["visible", "after_due_date", "after_published"]


class Instructions(BaseModel):
    """Content of ``autograde.json``: what a package grades.

    Attributes
    ----------
    hidden_cases : str
        When students see the checks of hidden cases, where the platform can delay them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    platform: str
    assignment: str
    hidden_cases: Visibility = "visible"

    @classmethod
    def read(cls, folder: Path, platform: str) -> Instructions:
        """The instructions in a folder; `DataError` where there are none for this platform."""
        path = folder / INSTRUCTIONS
        try:
            found = cls.model_validate(read_json(path, 1 << 16))
        except ValidationError as error:
            raise DataError(f"{path}: {first_problem(error)}") from None
        if found.platform != platform:
            raise DataError(f"{path}: this package is for {found.platform}, not for {platform}")
        return found


@dataclass(frozen=True)
class Kit:
    """What a package for a platform is made of.

    Parameters
    ----------
    requirement : str
        What pip installs on the platform; by default a wheel of this installation, which is part of the package.
    hidden_cases : str
        See `Instructions`.
    image : str
        Name of the container image, for platforms that take one.
    """

    course: Course
    assignment: Assignment
    requirement: str = ""
    hidden_cases: str = "visible"
    image: str = "hybridnn-grader"

    def __post_init__(self) -> None:
        require_choice("--hidden-cases", self.hidden_cases, get_args(Visibility))

    @property
    def name(self) -> str:
        """Short name of the assignment."""
        return self.assignment.id

    @cached_property
    def wheel(self) -> dict[str, bytes]:
        """The wheel to install, by its name; none where pip finds the requirement elsewhere."""
        return {} if self.requirement else dict([installed_wheel()])

    def pip_argument(self, folder: str) -> str:
        """What pip installs, for a shell; the wheel is in `folder`."""
        return " ".join(f"{folder}/{name}" for name in self.wheel) or shlex.quote(self.requirement)

    def grading_files(self, platform: str) -> dict[str, bytes]:
        """The instructions, and the course with its key."""
        about = {"platform": platform, "assignment": self.name, "hidden_cases": self.hidden_cases}
        names = [name for name in (SETTINGS, KEY, POLICY) if (self.course.folder / name).exists()]
        files = {f"{COURSE}/{name}": read_bytes(self.course.folder / name, 1 << 20) for name in names}
        return {INSTRUCTIONS: json_bytes(about), **files}

    def start_files(self) -> dict[str, bytes]:
        """The files that every student gets."""
        return {name: text.encode() for name, text in handed_out_files(self.course, self.assignment).items()}

    def require_one_variant(self, platform: str) -> None:
        """`SettingError` if every student has a variant, on a platform that does not name the student."""
        if self.course.settings.per_student:
            message = f"{platform} does not tell the grader who the student is; course.toml has per_student = true"
            raise SettingError("per_student", True, "false", message)


@dataclass(frozen=True)
class Package:
    """A file to upload."""

    name: str
    content: bytes


def zip_file(files: Files, *, scripts: tuple[str, ...] = ()) -> bytes:
    """A zip file, in which scripts are executable and only the owner may read the key."""
    return make_archive(files, {name: _mode(name, scripts) for name in files})


def tar_file(files: Files, *, scripts: tuple[str, ...] = ()) -> bytes:
    """A tar file with the folders of its files; modes as in `zip_file`."""
    stream = io.BytesIO()
    folders = {str(path) for name in files for path in Path(name).parents if path != Path(".")}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), _mode(name, scripts) & 0o777
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _mode(name: str, scripts: tuple[str, ...]) -> int:
    if Path(name).name == KEY:
        return PRIVATE
    return SCRIPT if name in scripts else 0o100644


def json_bytes(value: Any) -> bytes:
    """A JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def yaml_text(value: Any, indent: str = "") -> str:
    """Dictionaries, lists of them, and values as YAML."""
    if isinstance(value, dict):
        return "".join(f"{indent}{key}:{_yaml_value(item, indent)}" for key, item in value.items())
    return "".join(f"{indent}- {yaml_text(item, indent + '  ').lstrip(' ')}" for item in value)


def _yaml_value(value: Any, indent: str) -> str:
    if isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return "\n" + yaml_text(value, indent + "  ")
    if isinstance(value, str) and "\n" in value:
        return " |\n" + "".join(f"{indent}  {line}\n" for line in value.rstrip("\n").split("\n"))
    return f" {json.dumps(value, ensure_ascii=False)}\n"
