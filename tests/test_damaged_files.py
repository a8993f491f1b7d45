"""Every reader of a damaged or altered file returns its content or raises a one-line error that names the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.config.settings import Settings, load_settings, to_toml
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.diagnostics.stalls.diagnosis import stall_report
from hybridnn.diagnostics.stalls.files import read_stall
from hybridnn.diagnostics.stalls.state import JobState
from hybridnn.errors import HybridnnError
from hybridnn.pipeline.partition.layer_profile import LayerProfile, read_profile, write_profile
from hybridnn.pipeline.schedules.instructions import Forward
from hybridnn.runs.run_files import CONFIG_END, read_epochs, read_run, run_status
from hybridnn.runs.trace_file import read_trace
from hybridnn.study.quantities import figures_of
from hybridnn.study.study_file import load_study, ready_studies
from hybridnn.study.study_folder import StudyFolder, read_manifest
from hybridnn.utils.files import parse_toml
from reference.damaged_files import UNREADABLE, corruptions, mutations, replace_by_unreadable
from reference.finished_runs import prediction_line, write_run
from reference.stalls import collective, progress, rank_state
from reference.traces import communication, compute, phase, trace_document
from reference.trained_runs import write_checkpoint

EVERY = 7
"""Only every seventh altered document is read, to take seconds; no common factor with the number of values."""

ALL = (0, 1)
MEASURED = {
    "kind": "measured",
    "epoch": 1,
    "seconds_per_step": 0.2,
    "instructions": {"forward": 0.05},
    "communication": 0.1,
    "waiting": 0.02,
}
STEP = {
    "kind": "step",
    "step": 5,
    "epoch": 1,
    "train_loss": 1.0,
    "learning_rate": 0.1,
    "samples_per_second": 1.0,
    "compute_seconds": 1.0,
    "communication_seconds": 1.0,
    "bytes_sent": 1,
}


# -- valid files, each of which is then altered alone ----------------------------------------------------------------


def settings(folder: Path) -> Path:
    (folder / "settings.toml").write_text(to_toml(Settings()))
    return folder / "settings.toml"


def study(folder: Path) -> Path:
    (folder / "study.toml").write_bytes(next(iter(ready_studies().values())).read_bytes())
    return folder / "study.toml"


def study_manifest(folder: Path) -> Path:
    cells = [{"id": "ranks-1", "ranks": 1, "values": {"ranks": 1, "grid": "1x1"}}]
    about = {"format": 1, "name": "s", "description": "", "reduced": False, "cells": cells}
    (folder / "study.json").write_text(json.dumps(about))
    return folder / "study.json"


def machine_toml(folder: Path) -> Path:
    write_machine(read_machine("cluster-1024"), folder / "machine.toml")
    return folder / "machine.toml"


def machine_json(folder: Path) -> Path:
    (folder / "machine.json").write_text(read_machine("cluster-1024").model_dump_json(exclude_none=True))
    return folder / "machine.json"


def profile(folder: Path) -> Path:
    write_profile(folder / "profile.json", [LayerProfile(1e-3, 2e-3, 400.0, 1e6)] * 2)
    return folder / "profile.json"


def history(folder: Path) -> Path:
    return write_run(folder, ranks=2, seconds=[3, 2], lines=[prediction_line(0.2), MEASURED, STEP]) / "history.jsonl"


def config(folder: Path) -> Path:
    return write_run(folder) / "config.toml"


def trace(folder: Path) -> Path:
    events = [phase(1, 0, 9), compute("forward", 0, 2, Forward(0)), communication("allreduce", 2, 5, None, nbytes=8)]
    (folder / "trace.json").write_text(json.dumps(trace_document([(1, 1), (1, 1)], [events, events])))
    return folder / "trace.json"


def stall(folder: Path, which: str = "rank-1.json") -> Path:
    (folder / "stall").mkdir()
    group = progress("world", ALL, "allreduce (sum) of 800 bytes float64", entered=57)
    for rank in ALL:
        state = rank_state(rank, 2, collective("allreduce", "world", ALL, 57), group)
        (folder / "stall" / f"rank-{rank}.json").write_text(json.dumps(asdict(state)))
    (folder / "stall" / "job.json").write_text(json.dumps(asdict(JobState(2, 60.0, ("a", "b"), ""))))
    return folder / "stall" / which


def manifest(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    arrays = {f"layers.{layer}.{kind}": generator.normal(size=size) for layer in ALL for kind, size in SHAPES.items()}
    return write_checkpoint(folder, 7, arrays) / "manifest.json"


SHAPES = {"weight": (3, 3), "bias": (3,)}


# -- readers, and uses of the content --------------------------------------------------------------------------------


def use_history(path: Path) -> None:
    run_status(path.parent)
    _, damage = read_epochs(path.parent)
    if damage:
        raise HybridnnError(damage)
    figures_of(read_run(path.parent))


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
    if path.is_file() and path.stat().st_size < 1 << 20:
        sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.glob("*.*")}
        (path.parent / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()))
    found, problems = newest_valid(path.parents[1])
    if found is None:
        assert len(problems) == 1
        raise HybridnnError(problems[0])
    assert isinstance(found, Checkpoint)
    found.weights()


Text = Callable[[Any], str]


@dataclass(frozen=True)
class Case:
    """A kind of file: functions that write a valid one and read it, and its format."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    language: str = "json"

    def mutations(self, content: bytes) -> Iterator[bytes]:
        """The content with one value changed."""
        text = content.decode()
        if self.language == "toml":
            end = CONFIG_END if text.endswith(CONFIG_END) else ""
            for document in mutations(parse_toml(text), EVERY):
                with contextlib.suppress(TypeError):  # TOML has no null
                    yield (tomli_w.dumps(document) + end).encode(errors="surrogatepass")
            return
        lines = text.splitlines() if self.language == "lines" else [text]
        for number, line in enumerate(lines):
            for document in mutations(json.loads(line), EVERY):
                yield "\n".join([*lines[:number], json.dumps(document), *lines[number + 1 :], ""]).encode()


CASES = {
    "settings": Case(settings, load_settings, "toml"),
    "study": Case(study, load_study, "toml"),
    "study.json": Case(study_manifest, use_study_manifest),
    "machine.toml": Case(machine_toml, read_machine, "toml"),
    "machine.json": Case(machine_json, read_machine),
    "profile": Case(profile, read_profile),
    "history": Case(history, use_history, "lines"),
    "config of a run": Case(config, lambda path: read_run(path.parent), "toml"),
    "trace": Case(trace, use_trace),
    "stall of a rank": Case(stall, use_stall),
    "stall of the job": Case(lambda folder: stall(folder, "job.json"), use_stall),
    "manifest": Case(manifest, use_manifest),
}


def outcome(case: Case, path: Path) -> str:
    """The error of reading a file, which must be one line that names it; empty if there is none."""
    message = ""
    try:
        case.read(path)
    except HybridnnError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 4000
    assert str(path.parent) in message or not message  # the error may be about another file of the folder
    return message


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", CASES)
def test_an_altered_value_is_a_one_line_error(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    path = case.write(tmp_path)
    assert outcome(case, path) == ""
    found = set()
    for content in case.mutations(path.read_bytes()):
        path.write_bytes(content)
        found.add(outcome(case, path) == "")
    assert found == {True, False}  # some values may stand there


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", CASES)
def test_a_truncated_or_bit_flipped_file_is_a_one_line_error(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    path = case.write(tmp_path)
    outcomes = []
    for content in corruptions(path.read_bytes(), cuts=60, flips=100):
        path.write_bytes(content)
        outcomes.append(outcome(case, path))
    assert any(outcomes)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", CASES)
def test_a_deep_or_long_document_is_a_one_line_error(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    path = case.write(tmp_path)
    before = path.read_bytes()
    for value in ("[" * 10_000, "[" * 90 + "]" * 90, "{" * 10_000, "9" * 5000, "1e999999", '"' + "x" * 900_000 + '"'):
        text = f"a = {value}\n" if case.language == "toml" else value + "\n"
        for content in (text.encode(), text.encode() + before):
            path.write_bytes(content)
            assert outcome(case, path)
        path.write_bytes(before + text.encode())
        outcome(case, path)  # the last table of a file may be one that takes any key


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(
    "strange", ["missing", "folder", "pipe", "device", "link to itself", "link to nothing", "endless"]
)
def test_anything_but_a_file_is_a_one_line_error(strange: str, kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    path = case.write(tmp_path)
    replace_by_unreadable(strange, path)
    try:
        case.read(path)
    except HybridnnError as error:
        message = str(error)
    else:
        message = "" if strange == "missing" and "stall" in kind else "nothing is wrong"
    assert message.isprintable()
    assert (path.name in message and str(path.parent) in message) or not message
    assert message != "nothing is wrong"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["settings", "study", "machine.toml", "profile", "trace"])
@pytest.mark.parametrize("strange", ["inside a file", "name too long", "path too long", "NUL in the name"])
def test_an_impossible_name_is_a_one_line_error(strange: str, kind: str, tmp_path: Path) -> None:
    path, reason = UNREADABLE[strange](tmp_path)
    path = path.with_name(path.name + ".toml")
    with pytest.raises(HybridnnError, match=f"cannot be read: {reason}|no such run folder") as caught:
        CASES[kind].read(path)
    assert str(caught.value).isprintable()
