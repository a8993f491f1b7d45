"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from hybridnn.errors import EnvironmentProblem

__all__ = ["write_whole"]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, replacing the one that is there only when all is written; makes its folder.

    Raises
    ------
    EnvironmentProblem
        If that cannot be done.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}") from error
