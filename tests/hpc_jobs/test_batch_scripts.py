"""The scripts that requeue themselves, with stand-ins for the launcher, for scontrol and for the training."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from hybridnn.study.submit import filled_in
from mpi_runner.slowness import patience

JOBS = Path(str(files("hybridnn.hpc_jobs")))
REQUEUING = ["train.sbatch", "gpu_train.sbatch"]
PROGRAM = """#!/bin/bash
echo "$@" >>program-calls
threads="$OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $SRUN_CPUS_PER_TASK"
echo "threads $threads gpu ${CUDA_VISIBLE_DEVICES:-none}" >>program-calls
"""
WAITS = """
trap 'echo USR1 >>signals; exit 75' USR1
trap 'echo TERM >>signals; exit 75' TERM
echo $$ >ready
for _ in {1..36000}; do sleep 0.1; done
exit 9
"""


@dataclass
class Job:
    folder: Path
    process: subprocess.Popen[str]

    def wait(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=patience(30))
        return self.process.returncode, out

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_until_it_trains(self) -> int:
        """Return the process id of the training."""
        deadline = time.monotonic() + patience(20)
        while not self.lines("ready"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return int(self.lines("ready")[0])


@contextlib.contextmanager
def _job(folder: Path, script: str, program: str, **changes: str) -> Iterator[Job]:
    """Start a script as Slurm would, in a folder where python, scontrol and the launcher are stand-ins."""
    variables = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "name", "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "3"}
    stand_ins = {
        "program": PROGRAM + program,
        "launch": '#!/bin/sh\necho "$1 $2" >>launches\nshift 2\nexec "$@"\n',
        "scontrol": f'#!/bin/sh\necho "$@" >>scontrol-calls\nexit {changes.pop("scontrol_code", "0")}\n',
    }
    for name, text in stand_ins.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    launcher = changes.pop("launcher", f"{folder}/launch -n")
    values = {"python": str(folder / "program"), "launcher": launcher}
    if "most_restarts" in changes:
        values["most_restarts"] = changes.pop("most_restarts")
    (folder / script).write_text(filled_in((JOBS / script).read_text(), values))
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables, **changes}
    process = subprocess.Popen(
        ["bash", script, "config.toml", "--set", "data.name=a b"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Job(folder, process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=REQUEUING)
def script(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("code", [0, 1, 2, 137])
def test_end_of_the_run_is_the_end_of_the_job(tmp_path: Path, script: str, code: int) -> None:
    with _job(tmp_path, script, f"exit {code}") as job:
        assert job.wait() == (code, "")
        assert job.lines("scontrol-calls") == []
        assert job.lines("launches") == ["-n 4"]
        words, threads = job.lines("program-calls")
        assert words == "-m hybridnn train config.toml --set data.name=a b --out runs/name-17 --resume auto"
        assert threads.startswith("threads 3 3 3 ")


def test_run_of_another_job_can_be_gone_on_with(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 0", RUN="runs/name-3") as job:
        assert job.wait()[0] == 0
        assert job.lines("program-calls")[0].endswith(" --out runs/name-3 --resume auto")


def test_threads_are_one_where_the_job_says_nothing(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 0", SLURM_CPUS_PER_TASK="") as job:
        assert job.wait()[0] == 0
        assert job.lines("program-calls")[1].startswith("threads 1 1 1 ")


def test_warning_reaches_the_run_which_is_requeued(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, WAITS) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (0, "requeue: runs/name-17 goes on later\n")
        assert job.lines("signals") == ["USR1"]
        assert job.lines("scontrol-calls") == ["requeue 17"]


def test_warning_that_the_run_did_not_hear_requeues_it_too(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, WAITS.replace("trap", ": trap")) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait()[0] == 0
        assert job.lines("scontrol-calls") == ["requeue 17"]


def test_warning_before_the_run_does_no_harm(tmp_path: Path, script: str) -> None:
    search = 'if [ "$2" = hybridnn.hpc_jobs.launcher ]; then sleep 1; echo "$PWD/launch -n"; exit; fi\n'
    with _job(tmp_path, script, search + "exit 4", launcher="") as job:
        wait = time.monotonic() + patience(20)
        while not job.lines("program-calls"):
            assert time.monotonic() < wait
            time.sleep(0.02)
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait()[0] == 4


def test_run_that_goes_on_after_a_warning_is_waited_for(tmp_path: Path, script: str) -> None:
    deaf = WAITS.replace("exit 75", "sleep 0.5; exit 3", 1)
    with _job(tmp_path, script, deaf) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (3, "")
        assert job.lines("scontrol-calls") == []


def test_cancelled_job_is_not_requeued(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, WAITS) as job:
        training = job.wait_until_it_trains()
        job.process.send_signal(signal.SIGTERM)  # Slurm sends it to all processes of the job
        os.kill(training, signal.SIGTERM)
        assert job.wait()[0] == 75
        assert job.lines("signals") == ["TERM"]
        assert job.lines("scontrol-calls") == []


def test_restarts_end_at_their_limit(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 75", most_restarts="2", SLURM_RESTART_COUNT="1") as job:
        assert job.wait()[0] == 0
    with _job(tmp_path, script, "exit 75", most_restarts="2", SLURM_RESTART_COUNT="2") as job:
        code, out = job.wait()
        assert code == 75
        assert out == "not requeued after 2 restarts; to go on, submit the same with RUN=runs/name-17\n"
        assert len(job.lines("scontrol-calls")) == 1


def test_refused_requeue_says_how_to_go_on(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 75", scontrol_code="1") as job:
        code, out = job.wait()
        assert code == 75
        assert out.endswith("to go on, submit the same with RUN=runs/name-17\n")


@pytest.mark.parametrize(
    ("visible", "rank", "gpu"),
    [
        ("0,1,2", {"SLURM_LOCALID": "2"}, "2"),
        ("4,5", {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, "5"),
        ("4,5", {"MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"}, "5"),
        ("3", {"SLURM_LOCALID": "2"}, "3"),  # Slurm gave the rank its own already
        ("", {"SLURM_LOCALID": "1"}, "none"),
        ("0,1", {}, "0"),
    ],
)
def test_each_rank_sees_one_gpu(tmp_path: Path, visible: str, rank: dict[str, str], gpu: str) -> None:
    with _job(tmp_path, "gpu_train.sbatch", "exit 0", CUDA_VISIBLE_DEVICES=visible, **rank) as job:
        assert job.wait() == (0, "")
        assert job.lines("program-calls")[1].endswith(f" gpu {gpu}")


def test_scripts_that_requeue_differ_only_in_the_gpu() -> None:
    plain, gpu = ((JOBS / name).read_text().partition("# ---- run until done")[2] for name in REQUEUING)
    assert plain
    assert gpu.replace('bash -c "$one_gpu" bash ', "") == plain


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.sbatch")), ids=lambda path: path.name)
def test_script_names_no_site_and_sets_threads(path: Path) -> None:
    text = path.read_text()
    assert "--partition" not in text
    assert "--account" not in text
    assert not re.search(r"(?<![\w}.])/(home|scratch|work|opt|usr/local)\b", text)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    assert "export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads\n" in text
    assert 'launcher=$("$python" -m hybridnn.hpc_jobs.launcher)\n' in text


def test_all_scripts_are_there() -> None:
    scripts = {path.name for path in JOBS.glob("*.sbatch")}
    assert scripts == {"train.sbatch", "gpu_train.sbatch", "strong_scaling.sbatch", "study_array.sbatch"}
