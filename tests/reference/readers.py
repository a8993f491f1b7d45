"""Every reader of files, function or command, with a valid file, and the checks of a refusal in one line."""

import contextlib
import hashlib
import io
import json
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # here, or the memory of the first table that is read would have that of its import
import pytest

from hybridnn.checkpoints.reading import newest_valid
from hybridnn.cli.main import main
from hybridnn.config.settings import Settings, load_settings, to_toml
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.data import load_file
from hybridnn.diagnostics.diagnosis import stall_report
from hybridnn.diagnostics.rank_state import JobState
from hybridnn.diagnostics.stall_files import read_stall
from hybridnn.errors import HybridnnError
from hybridnn.pipeline.schedules.instructions import Forward
from hybridnn.runs.inference import load_samples
from hybridnn.runs.quantities import figures_of
from hybridnn.runs.run_files import read_epochs, read_run, run_status
from hybridnn.runs.trace_file import read_trace
from hybridnn.runs.trained_run import open_run
from hybridnn.study.study_file import load_study, ready_studies
from hybridnn.study.study_folder import StudyFolder, read_manifest
from hybridnn.utils import files
from reference.finished_runs import measured_line, prediction_line, write_run
from reference.stalls import collective, progress, rank_state
from reference.traces import communication, compute, phase, trace_document
from reference.trained_runs import write_checkpoint

FOLDER, RUN = "folder-4f", "run-4f"
"""Names that are in a message only where it names the folder of a file."""

LITTLE, MORE = 1 << 24, 1 << 27
"""Limits in bytes of the memory that readers of arrays and tables allocate, and all others with their buffers."""


# -- readers of valid files -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A function or a command that reads a file, which `write` makes in an empty folder."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    language: str  # "bytes", "text", "json", "toml", "lines" of JSON, "csv", "parquet" or "npz"
    accepts: tuple[str, ...] = ()  # replacements of the file that are valid, or of which a part is read
    reason: str = ""  # what precedes the reason of the system in a message, if there are no other reasons
    takes_name: bool = True  # is given the name of the file, rather than that of a folder
    memory: int = MORE


def content(name: str, text: str | bytes) -> Callable[[Path], Path]:
    """A function that writes a file of this content."""

    def write(folder: Path) -> Path:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder / name

    return write


JSON = content("a.json", '{"a": [1, 2.5, "x", null], "b": {"c": true}}')
TOML = content("a.toml", 'a = [1, 2.5, "x"]\n[b]\nc = 1979-05-27\n')
CSV = content("mine.csv", "a,b,y\n1,2.5,0\n3,4e1,1\n-5,6,1\n7,8,0\n")
X, LABELS = np.arange(12.0).reshape(4, 3), np.array([2, 0, 1, 2])


def npz(folder: Path) -> Path:
    np.savez_compressed(folder / "mine.npz", x_train=X, y_train=LABELS, x=X)
    return folder / "mine.npz"


def parquet(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"a": [1.0, 3.0, -5.0, 7.0], "b": [2.5, 40.0, 6.0, 8.0], "y": [0, 1, 1, 0]}).to_parquet(
        folder / "mine.parquet"
    )
    return folder / "mine.parquet"


def load(path: Path) -> Any:
    """Load as training data."""
    return load_file(path, () if path.suffix == ".npz" else ["y"])


def sample(path: Path) -> Any:
    """Load as samples to predict from."""
    return load_samples(path, 3 if path.suffix == ".npz" else 2, ["y"])


def study_manifest(folder: Path) -> Path:
    cells = [{"id": "ranks-1", "ranks": 1, "values": {"ranks": 1, "grid": "1x1"}}]
    about = {"format": 1, "name": "s", "description": "", "reduced": False, "cells": cells}
    return content("study.json", json.dumps(about))(folder)


def machine_toml(folder: Path) -> Path:
    write_machine(read_machine("cluster-1024"), folder / "machine.toml")
    return folder / "machine.toml"


ALL = (0, 1)
COUNTS = ("step", "epoch", "train_loss", "learning_rate", "samples_per_second", "compute_seconds")
STEP = {"kind": "step", **dict.fromkeys((*COUNTS, "communication_seconds", "bytes_sent"), 1)}


def history(folder: Path) -> Path:
    lines = [prediction_line(0.2), measured_line(1, 0.2), STEP]
    return write_run(folder, ranks=2, seconds=[3, 2], lines=lines) / "history.jsonl"


def trace(folder: Path) -> Path:
    events = [phase(1, 0, 9), compute("forward", 0, 2, Forward(0)), communication("allreduce", 2, 5, None, nbytes=8)]
    return content("trace.json", json.dumps(trace_document([(1, 1), (1, 1)], [events, events])))(folder)


def stall(folder: Path, which: str = "rank-1.json") -> Path:
    (folder / "stall").mkdir()
    group = progress("world", ALL, "allreduce (sum) of 800 bytes float64", entered=57)
    for rank in ALL:
        state = rank_state(rank, 2, collective("allreduce", "world", ALL, 57), group)
        content(f"rank-{rank}.json", json.dumps(asdict(state)))(folder / "stall")
    content("job.json", json.dumps(asdict(JobState(2, 60.0, ("a", "b"), ""))))(folder / "stall")
    return folder / "stall" / which


def manifest(folder: Path) -> Path:
    random = np.random.default_rng(0)
    shapes = {"weight": (3, 3), "bias": (3,)}
    arrays = {f"layers.{layer}.{kind}": random.normal(size=size) for layer in ALL for kind, size in shapes.items()}
    return write_checkpoint(folder, 7, arrays) / "manifest.json"


def trained(folder: Path, which: str) -> Path:
    weights = {"layers.0.weight": np.ones((3, 4)), "layers.0.bias": np.ones(3)}
    weights |= {"layers.1.weight": np.ones((10, 3)), "layers.1.bias": np.ones(10)}
    np.savez(write_run(folder, hidden=(3,)) / "weights.npz", allow_pickle=False, **weights)
    np.savez(folder / "standardization.npz", allow_pickle=False, x_mean=np.zeros(4), x_scale=np.ones(4))
    return folder / which


def use_history(path: Path) -> None:
    run_status(path.parent)
    _, damage = read_epochs(path.parent)
    if damage:
        raise HybridnnError(damage)
    figures_of(read_run(path.parent))


def use_run(path: Path) -> None:
    open_run(path.parent)


def use_study_manifest(path: Path) -> None:
    for cell in read_manifest(path.parent).cells:
        StudyFolder(path.parent).state(cell.id)


def use_trace(path: Path) -> None:
    found = read_trace(path)
    for number in found.epochs:
        found.epoch(number)


def use_stall(path: Path) -> None:
    record = read_stall(path.parents[1])
    if record is not None:
        stall_report(record, path.parent)


def use_manifest(path: Path) -> None:
    """Use a checkpoint with updated digests, so that only the manifest itself can reveal the change."""
    if path.is_file() and os.access(path, os.R_OK, effective_ids=True) and 0 < path.stat().st_size < 1 << 20:
        sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.glob("*.*")}
        (path.parent / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()))
    found, problems = newest_valid(path.parents[1])
    if found is None:
        assert len(problems) == 1
        raise HybridnnError(problems[0])
    found.weights()


READ, PART = "cannot be read: ", ("4 TB of zeros",)
FUNCTIONS = {
    "bytes": Reader(content("a", b"some bytes: \xff"), lambda path: files.read_bytes(path, 1000), "bytes", (), READ),
    "text": Reader(content("a", "some text: ä"), lambda path: files.read_text(path, 1000), "text", (), READ),
    "json": Reader(JSON, files.read_json, "json", (), READ),
    "toml": Reader(TOML, files.read_toml, "toml", (), READ),
    "lines": Reader(content("a", "one\ntwo\n"), lambda path: list(files.read_lines(path)), "bytes", PART, READ),
    "tail": Reader(content("a", "one\ntwo\n"), files.read_tail, "bytes", PART, READ),
    "npz": Reader(npz, files.read_npz, "npz", memory=LITTLE),
    "npz to train on": Reader(npz, load, "npz", memory=LITTLE),
    "npz to predict from": Reader(npz, sample, "npz", memory=LITTLE),
    "csv to train on": Reader(CSV, load, "csv", memory=LITTLE),
    "csv to predict from": Reader(CSV, sample, "csv", memory=LITTLE),
    "parquet to train on": Reader(parquet, load, "parquet", memory=LITTLE),
    "parquet to predict from": Reader(parquet, sample, "parquet", memory=LITTLE),
    "weights of a run": Reader(partial(trained, which="weights.npz"), use_run, "npz", takes_name=False),
    "standardization of a run": Reader(partial(trained, which="standardization.npz"), use_run, "npz", takes_name=False),
    "settings": Reader(content("settings.toml", to_toml(Settings())), load_settings, "toml", (), READ),
    "study": Reader(content("s.toml", next(iter(ready_studies().values())).read_bytes()), load_study, "toml", (), READ),
    "study.json": Reader(study_manifest, use_study_manifest, "json", takes_name=False),
    "machine.toml": Reader(machine_toml, read_machine, "toml", (), READ),
    "history": Reader(history, use_history, "lines", takes_name=False),
    "config of a run": Reader(
        lambda folder: write_run(folder) / "config.toml", lambda path: read_run(path.parent), "toml", takes_name=False
    ),
    "trace": Reader(trace, use_trace, "json"),
    "stall of a rank": Reader(stall, use_stall, "json", ("nothing",), takes_name=False),
    "stall of the job": Reader(lambda folder: stall(folder, "job.json"), use_stall, "json", ("nothing",), "", False),
    "manifest": Reader(manifest, use_manifest, "json", takes_name=False),
}
"""Functions by the files that they read."""


def run_command(*arguments: str) -> tuple[int, str]:
    """Run ``hybridnn`` in this process; return its exit code and what it prints on standard error."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code, err.getvalue()


def command(file: str, *arguments: str, accepts: tuple[str, ...] = ()) -> Reader:
    """A command that reads `file` in the current folder, as a reader."""

    def write(folder: Path) -> Path:
        (write_run(folder / RUN) / "stall").mkdir()
        return folder / file

    return Reader(write, lambda path: call(*arguments), "", accepts)


def call(*arguments: str) -> None:
    """Run a command, and raise its only line of error."""
    code, err = run_command(*arguments)
    if code:
        assert code == 2, err
        (line,) = err.splitlines()
        assert line.startswith("Error: ")
        raise HybridnnError(line.removeprefix("Error: "))


QUICK = ("train", "--epochs", "1", "-q")
COMMANDS = {
    "train, settings": command("s.toml", "train", "s.toml"),
    "train, machine": command("machine.toml", *QUICK, accepts=("nothing",)),
    "plan, settings": command("s.toml", "plan", "s.toml", "--machine", "cluster-1024"),
    "plan, machine": command("m.toml", "plan", "--machine", "m.toml"),
    "study run": command("study.toml", "study", "run", "study.toml"),
    "study report": command("study.json", "study", "report", "."),
    "trace file": command("trace.json", "trace", "trace.json"),
    "trace of a run": command(f"{RUN}/trace.json", "trace", RUN),
    "report, history": command(f"{RUN}/history.jsonl", "report", RUN),
    "report, settings": command(f"{RUN}/config.toml", "report", RUN),
    "stall": command(f"{RUN}/stall/job.json", "report", RUN, accepts=("nothing",)),
    "evaluate, settings": command(f"{RUN}/config.toml", "evaluate", RUN),
    "evaluate, weights": command(f"{RUN}/weights.npz", "evaluate", RUN),
    "export, history": command(f"{RUN}/history.jsonl", "export", RUN, "out.npz"),
    "resume, history": command(f"{RUN}/history.jsonl", "train", "--resume", RUN, "-q"),
    "resume, settings": command(f"{RUN}/config.toml", "train", "--resume", RUN, "-q"),
}
"""Commands by the file that they read."""

READERS = FUNCTIONS | COMMANDS


# -- the runner -------------------------------------------------------------------------------------------------------


def state_of(folder: Path) -> set[tuple[str, int, int]]:
    """Names and modes in a folder, and times of files; not of the digests that `use_manifest` writes."""
    found = {path: os.lstat(path) for path in folder.rglob("*") if path.name != "SHA256SUMS"}
    times = {path: 0 if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns for path, info in found.items()}
    return {(str(path), info.st_mode, times[path]) for path, info in found.items()}


def require_one_line(message: str, path: Path) -> None:
    """Check that the message about a file is a short line that names it or its folder."""
    names = {path.name, path.parent.name, repr(path.name)[1:-1]}
    assert any(name[:80] in message for name in names), message
    assert message.isprintable()
    assert len(message) < 4000 + len(str(path))


@contextlib.contextmanager
def possible_refusal(path: Path) -> Iterator[None]:
    """Accept that a file is refused in one line."""
    try:
        yield
    except HybridnnError as error:
        require_one_line(str(error), path)


def refusal(reader: Reader, path: Path, *, measured: bool = False) -> str:
    """The message with which a reader refuses a file, after all checks of a refusal; empty if it reads the file."""
    before, message = state_of(Path.cwd()), ""
    if measured:
        tracemalloc.start()
    try:
        reader.read(path)
    except HybridnnError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
    if message:
        require_one_line(message, path)
        assert state_of(Path.cwd()) == before
    assert peak < reader.memory
    return message
