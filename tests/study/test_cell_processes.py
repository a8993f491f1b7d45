"""Launchers, the process of a run, and its error line."""

from pathlib import Path

import pytest

from hybridnn.comm.launcher import ANYWHERE, Placement, rank_command
from hybridnn.config.settings import load_settings
from hybridnn.errors import SettingError
from hybridnn.study.runner import error_line, train_command

pytestmark = pytest.mark.timeout(600)

RULE = "-" * 74
PRTE_LINE = "process rank 3 with PID 4711 on node vm exited on signal 9 (Killed)"
PRTERUN = (
    f"{RULE}\nprterun noticed that process rank 3 with PID 4711 on node vm exited on\nsignal 9 (Killed).\n{RULE}\n"
)
MPICH_LINE = "EXIT STRING: Killed (signal 9)"


def test_launcher_is_split_as_by_a_shell() -> None:
    command = rank_command("env -u 'A B' N={ranks} x{ranks}y", 8)
    assert command(8, ["program"], ANYWHERE) == ["env", "-u", "A B", "N=8", "x8y", "program"]
    assert rank_command("", 1)(1, ["program"], ANYWHERE) == ["program"]


def test_launcher_fills_one_node_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "3")
    command = rank_command("env -N{nodes} {ranks}", 8)
    commands = [command(ranks, [], ANYWHERE)[1:] for ranks in (1, 3, 4, 7)]
    assert commands == [["-N1", "1"], ["-N1", "3"], ["-N2", "4"], ["-N3", "7"]]
    for per_node in ("", "many", "0"):
        monkeypatch.setenv("SLURM_NTASKS_PER_NODE", per_node)
        with pytest.raises(SettingError, match=r"--launcher = .*\{nodes\} needs a Slurm job"):
            command(8, [], ANYWHERE)
    assert command(8, [], Placement(4, 2))[1:] == ["-N4", "8"]


@pytest.mark.parametrize(
    ("launcher", "placed"),
    [
        ("mpirun --bind-to none -n {ranks}", "--map-by ppr:3:node:PE=2 --bind-to core -n 6"),
        ("own {nodes} {ranks_per_node} {threads} {binding} {ranks}", "2 3 2 core 6"),
    ],
)
def test_launchers_are_told_the_placement(tmp_path, monkeypatch, launcher, placed) -> None:
    for name, version in (("mpirun", "Open MPI"), ("own", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert rank_command(launcher, 6)(6, ["x"], Placement(2, 3, 2, "core"))[1:] == [*placed.split(), "x"]


def test_unknown_launcher_that_lacks_a_part_of_the_placement_is_refused() -> None:
    command = rank_command("env N={ranks} NODES={nodes}", 8)
    with pytest.raises(SettingError, match=r"does not place ranks: binding = core needs \{binding\} in it"):
        command(8, ["x"], Placement(nodes=2, binding="core"))


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("", "it printed no error"),
        ("one\ntwo\n\n", "two"),
        ("Error: wrong\n-----\nprterun detected a process\n-----", "Error: wrong"),
        ("Traceback:\n  File\nmodule.ValueError: bad\n-----\n", "module.ValueError: bad"),
        (f"=== rank 3 (process 4711) is gone: killed, or ended without a word ===\n{PRTERUN}", PRTE_LINE),
        ("=== rank 3 (process 4711) is gone: killed\n---\n", "rank 3 (process 4711) is gone: killed"),
        ("srun: error: n1: task 3: Killed\nsrun: Terminating StepId=1.0\n", "error: n1: task 3: Killed"),
        ("= EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n===\n", MPICH_LINE),
        (b"\xff\xfe broken text\n", "\ufffd\ufffd broken text"),
    ],
)
def test_error_line_is_the_most_informative_one(tmp_path: Path, stderr: str | bytes, line: str) -> None:
    (tmp_path / "stderr.log").write_bytes(stderr if isinstance(stderr, bytes) else stderr.encode())
    assert error_line(tmp_path) == line


def test_folder_with_quotes_survives_the_command_line() -> None:
    folder = '/a "b" \\c'
    override = train_command(Path("s.toml"), Path(folder))[-1]
    assert load_settings(None, [override]).output.folder == folder
