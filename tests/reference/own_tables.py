"""Small tables of a user, as text and as files."""

from pathlib import Path


def table(folder: Path, text: str | bytes, name: str = "mine.csv") -> Path:
    content = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(content)
    return folder / name


def rows(head: str, *patterns: str, times: int = 10) -> str:
    """A table whose rows repeat; ``#`` in a pattern is the number of the row."""
    lines = [pattern.replace("#", str(n)) for n, pattern in enumerate(list(patterns) * times)]
    return "\n".join([head, *lines]) + "\n"
