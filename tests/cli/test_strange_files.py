"""Unreadable files, impossible names and damaged checkpoints: one error line with exit code 2, and no loss of data."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.cli.train_view import TrainView
from reference.command_line import Run, assert_same_weights
from reference.damaged_files import replace_by_unreadable
from reference.finished_runs import write_run

KINDS = ("missing", "folder", "pipe", "device", "link to itself", "endless")
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train, settings": ("s.toml", ("train", "s.toml")),
    "train, weights": ("w.npz", ("train", "--set", "model.init_from=w.npz", "-q")),
    "train, machine": ("machine.toml", ("train", "--epochs", "1", "-q")),
    "plan, settings": ("s.toml", ("plan", "s.toml", "--machine", "cluster-1024")),
    "plan, machine": ("m.toml", ("plan", "--machine", "m.toml")),
    "plan, machine in JSON": ("m.json", ("plan", "--machine", "m.json")),
    "partition, profile": ("p.json", ("partition", "--stages", "2", "--profile", "p.json")),
    "study run": ("study.toml", ("study", "run", "study.toml")),
    "study report": ("study.json", ("study", "report", ".")),
    "trace": ("trace.json", ("trace", "trace.json")),
    "trace of a run": ("run/trace.json", ("trace", "run")),
    "report, history": ("run/history.jsonl", ("report", "run")),
    "report, settings": ("run/config.toml", ("report", "run")),
    "stall": ("run/stall/job.json", ("stall", "run")),
    "evaluate, settings": ("run/config.toml", ("evaluate", "run")),
    "evaluate, weights": ("run/weights.npz", ("evaluate", "run")),
    "export, history": ("run/history.jsonl", ("export", "run", "out.npz")),
    "resume, history": ("run/history.jsonl", ("train", "--resume", "run", "-q")),
    "resume, settings": ("run/config.toml", ("train", "--resume", "run", "-q")),
}
VALID = {("train, machine", "missing"), ("stall", "missing")}


def require_one_line(code: int, err: str) -> str:
    assert code == 2, err
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_file_is_one_line(kind: str, command: str, run_hybridnn: Run) -> None:
    file, arguments = COMMANDS[command]
    write_run(Path("run"))
    Path("run/stall").mkdir()
    replace_by_unreadable(kind, Path(file))
    if (command, kind) in VALID:
        assert run_hybridnn(*arguments)[0] == 0
        return
    code, _, err = run_hybridnn(*arguments)
    line = require_one_line(code, err)
    assert Path(file).name in line or "run" in line


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["n" * 300, "/".join(["n" * 200] * 30), "a\0b", "file/there"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "NAME"),
        ("train", "--resume", "NAME"),
        ("train", "--out", "NAME", "-q"),
        ("train", "--file", "NAME"),
        ("plan", "--machine", "NAME.toml"),
        ("partition", "--stages", "2", "--profile", "NAME"),
        ("study", "run", "NAME"),
        ("study", "report", "NAME"),
        ("report", "NAME"),
        ("stall", "NAME"),
        ("trace", "NAME"),
        ("trace", "run", "--out", "NAME.svg"),
        ("evaluate", "NAME"),
        ("export", "run", "NAME.npz"),
        ("export", "NAME", "out.npz"),
    ],
)
def test_impossible_name_is_one_line(name: str, arguments: tuple[str, ...], run_hybridnn: Run) -> None:
    Path("file").touch()
    code, _, err = run_hybridnn(*(argument.replace("NAME", name) for argument in arguments))
    require_one_line(code, err.replace(name, "NAME"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", ["a file", "an empty folder", "a folder of something else", "nothing", "a pipe"])
@pytest.mark.parametrize("more", [(), ("--set", "training.epochs=9")])
def test_resuming_without_a_run_is_one_line(content: str, more: tuple[str, ...], run_hybridnn: Run) -> None:
    path = Path("there")
    if content == "a file":
        path.write_text("text")
    elif content == "a pipe":
        os.mkfifo(path)
    elif content != "nothing":
        path.mkdir()
    if content == "a folder of something else":
        (path / "config.toml").write_text("[tool]\n")
        (path / "notes.txt").write_text("text")
    before = sorted(path.glob("*"))
    code, _, err = run_hybridnn("train", "--resume", "there", *more)
    assert require_one_line(code, err) == "Error: --resume = 'there': is not a run folder"
    assert sorted(path.glob("*")) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a file", "a link to itself"])
def test_a_file_where_a_folder_is_expected_is_one_line(kind: str, run_hybridnn: Run) -> None:
    def create(path: str) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("x") if kind == "a file" else Path(path).symlink_to(Path(path).name)

    train = ("train", "--data", "synthetic", "--epochs", "1", "-q")
    for path, arguments in (
        ("one", (*train, "--out", "one")),
        ("two", (*train, "--out", "two/run")),
        ("three/checkpoints", (*train, "--out", "three")),
        ("four", (*train, "--out", "four", "--resume", "auto")),
        ("five/checkpoints", (*train, "--out", "five", "--resume", "auto")),
        ("six", ("study", "run", "laugier-figure-5", "--out", "six", "--reduced")),
    ):
        create(path)
        code, _, err = run_hybridnn(*arguments)
        assert path.partition("/")[0] in require_one_line(code, err)


@pytest.mark.parametrize("name", ["weights.npz", "config.toml", "learning_curve.svg", "standardization.npz"])
def test_a_folder_where_a_file_is_expected_is_one_line(name: str, run_hybridnn: Run) -> None:
    Path("run", name).mkdir(parents=True)
    code, _, err = run_hybridnn("train", "--epochs", "1", "--set", "data.standardize=true", "--out", "run", "-q")
    require_one_line(code, err)


@pytest.mark.parametrize("cut", [1, 9, 30, 200])
def test_report_on_a_history_that_was_cut_is_one_line(cut: int, run_hybridnn: Run) -> None:
    history = write_run(Path("run")) / "history.jsonl"
    complete = history.read_bytes()
    history.write_bytes(complete[:-cut])
    code, _, err = run_hybridnn("report", "run")
    assert require_one_line(code, err) == "Error: run: the run did not end well, or is still running"
    assert run_hybridnn("export", "run", "out.npz")[0] == 2
    history.write_bytes(complete)
    assert run_hybridnn("report", "run")[0] == 0


AS_A_USER = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Removes root's permission to read all files."""


THREE_COMMANDS = """
from hybridnn.cli.main import main
for arguments in (["report", "run"], ["train", "s.toml"], ["plan", "--machine", "m.toml"]):
    try:
        main(arguments)
    except SystemExit as end:
        print(end.code)
"""


@pytest.mark.skipif(bool(AS_A_USER) and shutil.which(AS_A_USER[0]) is None, reason="root may read everything")
@pytest.mark.timeout(300)
def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for file in ("run/config.toml", "run/history.jsonl", "s.toml", "m.toml"):
        (tmp_path / file).touch()
        (tmp_path / file).chmod(0)
    command = [*AS_A_USER, sys.executable, "-c", THREE_COMMANDS]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert ended.stdout.split() == ["2", "2", "2"]
    lines = ended.stderr.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("Error: ")
        assert "Permission denied" in line or "not readable" in line


# -- a run that lost its newest checkpoint ---------------------------------------------------------------------------


SMALL = (
    *("train", "--data", "synthetic", "--hidden", "9", "--epochs", "3", "--batch-size", "25", "-q"),
    *("--set", "data.synthetic.samples=200", "--set", "data.synthetic.test_samples=20"),
    *("--set", "training.checkpoint_every=5", "--set", "training.checkpoint_async=false"),
)
NEWEST = "step-00000015"


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run, and one that crashed in its second epoch of eight steps."""
    from hybridnn.cli.main import main

    folder = tmp_path_factory.mktemp("crashed")

    def on_epoch(view: TrainView, record: Any) -> None:
        if record.epoch == 2:
            raise RuntimeError("the plug was pulled")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit):
            main([*SMALL, "--out", "uninterrupted"])
        patch.setattr(TrainView, "on_epoch", on_epoch)
        with pytest.raises(RuntimeError, match="plug"):
            main([*SMALL, "--out", "run"])
    return folder


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint, with the digests that belong to it."""
    manifest = checkpoint / "manifest.json"
    values = json.loads(manifest.read_text())
    change(values)
    manifest.write_text(json.dumps(values))
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in checkpoint.glob("*.*")}
    (checkpoint / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()))


def at(path: str, value: Any) -> Callable[[Path], None]:
    """Return a function that sets one value of the manifest."""

    def change(values: dict[str, Any]) -> None:
        *parents, key = path.split("/")
        for parent in parents:
            values = values[parent]
        values[key] = value

    return lambda checkpoint: forge(checkpoint, change)


def empty_array(checkpoint: Path) -> None:
    (checkpoint / "layers.0.weight.npy").write_bytes(b"")
    digest = hashlib.sha256(b"").hexdigest()
    entry = {"shape": [0, 10], "dtype": "float32", "bytes": 0, "sha256": digest}
    forge(checkpoint, lambda values: values["arrays"].update({"layers.0.weight.npy": entry}))


def other_array(checkpoint: Path) -> None:
    """Replace an array by one of the same size and another shape."""
    path = checkpoint / "layers.0.weight.npy"
    np.save(path, np.load(path).T.copy())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    forge(checkpoint, lambda values: values["arrays"]["layers.0.weight.npy"].update(sha256=digest))


def no_folder(how: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(checkpoint: Path) -> None:
        shutil.rmtree(checkpoint)
        how(checkpoint)

    return replace


def no_file(kind: str, name: str) -> Callable[[Path], None]:
    def replace(checkpoint: Path) -> None:
        replace_by_unreadable(kind, checkpoint / name)

    return replace


HARM: dict[str, Callable[[Path], object]] = {
    "a file": no_folder(lambda path: path.write_text("x")),
    "a link to itself": no_folder(lambda path: path.symlink_to(path.name)),
    "a link to nothing": no_folder(lambda path: path.symlink_to("nowhere")),
    "a pipe": no_folder(os.mkfifo),
    "an empty folder": no_folder(Path.mkdir),
    **{
        f"{name}, {kind}": no_file(kind, name)
        for name in ("manifest.json", "SHA256SUMS", "layers.0.weight.npy")
        for kind in ("pipe", "device", "link to itself", "endless", "folder")
    },
    "an empty array": empty_array,
    "another array": other_array,
    "version 3 by a flipped bit": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"format_version": 1', '"format_version": 3')
    ),
    "huge format version": at("format_version", 10**400),
    "no format version": at("format_version", 0.5),
    "empty method": at("origin/method", ""),
    "unknown method": at("origin/method", "teleport"),
    "no stages": at("origin/stages", []),
    "minibatches beyond the epoch": at("progress/minibatches", 8),
    "more minibatches": at("progress/minibatches", 2**62),
    "no minibatches": at("progress/minibatches", -1),
    "more samples": at("progress/samples", 7000),
    "a loss that is no number": at("progress/loss_sum", "x"),
    "epoch 0": at("progress/epoch", 0),
    "an epoch that cannot have begun": at("progress/epoch", 10**12),
    "huge step": at("progress/step", 10**30),
    "another step": at("progress/step", 16),
    "no arrays": at("arrays", {}),
    "a slot more": at("slots", ["velocity", "speed"]),
    "a file outside": lambda path: forge(path, lambda values: values["arrays"].update({"../../x.npy": {}})),
    "another shape": at("arrays/layers.0.weight.npy/shape", [10**9, 10**9]),
    "another dtype": at("arrays/layers.0.weight.npy/dtype", "object"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("harm", HARM)
def test_run_resumes_from_an_older_checkpoint_when_the_newest_is_damaged(
    harm: str, crashed: Path, run_hybridnn: Run, tmp_path: Path
) -> None:
    shutil.copytree(crashed / "run", "run")
    HARM[harm](Path("run/checkpoints", NEWEST))
    code, _, err = run_hybridnn("train", "--resume", "run", "-q")
    assert code == 0, err
    (warning,) = [line for line in err.splitlines() if NEWEST in line]
    assert "passed over" in warning
    assert_same_weights("run", crashed / "uninterrupted")
