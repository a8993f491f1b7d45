"""Results of commands in tests: error lines, records and weights of runs."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[..., tuple[int, str, str]]
"""Runs a command and returns its exit code, stdout and stderr."""


SignalAt = Callable[[int, int], None]
"""Sends a signal to this process when a step has been logged, once, and has it noticed after every step."""


def read_terminal(descriptor: int) -> str:
    """Read a pseudo-terminal until its other end is closed, which Linux reports as an error."""
    chunks = []
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    return b"".join(chunks).decode()


def output_of(result: tuple[int, str, str]) -> str:
    """The output of a command that ended well, without a warning."""
    code, out, err = result
    assert (code, err) == (0, "")
    return out


def facts_of(run: Run, *arguments: str) -> Any:
    """The output in JSON of a command that ended well."""
    return json.loads(output_of(run(*arguments, "--format", "json")))


def error_line(result: tuple[int, str, str]) -> str:
    """The only line that a command with wrong input prints, with exit code 2."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    return line


def records_of(folder: Path | str, kind: str | None = None) -> list[dict[str, Any]]:
    """Lines of a run's history, those that are cut left out; all kinds by default."""
    path = Path(folder, "history.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record for record in records if kind is None or record["kind"] == kind]


def assert_same_weights(folder: Path | str, other: Path | str, tolerance: float = 0.0) -> None:
    """Compare the ``weights.npz`` of two runs; `tolerance` is relative and absolute."""
    with np.load(Path(folder, "weights.npz")) as found, np.load(Path(other, "weights.npz")) as expected:
        assert found.files == expected.files
        for name in expected.files:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=name
            )
