"""Batch scripts, with stand-ins for the launcher, for scontrol and for the training."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from hybridnn.study.submit import fill_in_script
from mpi_runner.slowness import deadline

pytestmark = pytest.mark.timeout(600)

JOBS = Path(str(files("hybridnn.hpc_jobs")))
REQUEUING = ["train.sbatch", "gpu_train.sbatch"]
PROGRAM = f"""#!/bin/bash
[ "$2" != hybridnn.hpc_jobs.run_step ] || exec {sys.executable} "$@"
"""
PROGRAM += """
[ "$2" != hybridnn.hpc_jobs.lost_node ] || exit ${LOST_NODE:-1}
echo "$@" >>program-calls
threads="$OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $SRUN_CPUS_PER_TASK"
echo "threads $threads gpu ${CUDA_VISIBLE_DEVICES:-none}" >>program-calls
echo "osc $OMPI_MCA_osc btl $OMPI_MCA_btl" >>open-mpi
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
        out, _ = self.process.communicate(timeout=deadline(30))
        return self.process.returncode, out

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_until_it_trains(self) -> int:
        """Return the process id of the training."""
        end = time.monotonic() + deadline(20)
        while not self.lines("ready"):
            assert time.monotonic() < end
            time.sleep(0.02)
        return int(self.lines("ready")[0])


@contextlib.contextmanager
def _job(folder: Path, script: str, program: str, **changes: str) -> Iterator[Job]:
    """Start a script as Slurm does, in a folder with stand-ins for python, scontrol and the launcher."""
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
    for name, variable in (("most_restarts", "most_restarts"), ("place", "folder")):
        if name in changes:
            values[variable] = changes.pop(name)
    arguments = changes.pop("arguments", "config.toml --set data.name=a*b").split()
    text = fill_in_script((JOBS / script).read_text(), values)
    (folder / script).write_text(text.replace("step=$!\n", changes.pop("before_step", "") + "step=$!\n"))
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables, **changes}
    process = subprocess.Popen(
        ["bash", script, *(argument.replace("*", " ") for argument in arguments)],
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
        command, threads = job.lines("program-calls")
        assert command == "-m hybridnn train config.toml --set data.name=a b --out runs/name-17 --resume auto"
        assert threads.startswith("threads 3 3 3 ")


@pytest.mark.parametrize("name", [*REQUEUING, "study_array.sbatch"])
def test_run_that_ends_with_a_node_is_requeued(tmp_path: Path, name: str) -> None:
    array = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "17"} if "array" in name else {}
    with _job(tmp_path, name, "exit 14", LOST_NODE="0", arguments="", **array) as job:
        assert job.wait() == (0, "requeue: " + ("the cell runs later\n" if array else "runs/name-17 goes on later\n"))
        assert job.lines("scontrol-calls") == ["requeue 17" + "_0" * bool(array)]


def test_run_of_another_job_can_be_resumed(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 0", RUN="runs/name-3") as job:
        assert job.wait()[0] == 0
        assert job.lines("program-calls")[0].endswith(" --out runs/name-3 --resume auto")


def test_one_thread_without_cpus_per_task(tmp_path: Path, script: str) -> None:
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


def test_run_that_dies_of_the_warning_is_requeued(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, WAITS.replace("trap", ": trap")) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait()[0] == 0
        assert job.lines("scontrol-calls") == ["requeue 17"]


SEARCH = """
if [ "$2" = hybridnn.hpc_jobs.launcher ]; then
  echo "$3" >searched
  while [ ! -e go-on ]; do sleep 0.05; done
  echo "$PWD/launch -n"
  exit
fi
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.sbatch", "requeue: runs/name-17 goes on later\n"),
        ("gpu_train.sbatch", "requeue: runs/name-17 goes on later\n"),
        ("study_array.sbatch", "requeue: the cell runs later\n"),
    ],
)
def test_warning_during_the_search_for_a_launcher_requeues(tmp_path: Path, name: str, line: str) -> None:
    task = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2"} if name == "study_array.sbatch" else {}
    with _job(tmp_path, name, SEARCH + "exit 4", launcher="", arguments="", **task) as job:
        end = time.monotonic() + deadline(20)
        while not job.lines("searched"):
            assert time.monotonic() < end
            time.sleep(0.02)
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # the shell handles it after the search
        (tmp_path / "go-on").touch()
        assert job.wait() == (0, line)
        assert job.lines("scontrol-calls") == ["requeue 16_2" if task else "requeue 17"]
        assert job.lines("launches") == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("train.sbatch", "runs/name-17/launcher-17"),
        ("gpu_train.sbatch", "runs/name-17/launcher-17"),
        ("study_array.sbatch", "here/slurm/launcher-16"),
        ("strong_scaling.sbatch", "here/slurm/launcher-17"),
    ],
)
def test_launcher_is_kept_for_the_next_start(tmp_path: Path, name: str, file: str) -> None:
    variables = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2"}
    place = {} if "train" in name else {"place": "here"}
    (tmp_path / "go-on").touch()
    with _job(tmp_path, name, SEARCH + "exit 0", launcher="", arguments="", **variables, **place) as job:
        assert job.wait()[0] == 0
        assert job.lines("searched") == [file]


def test_job_trains_with_the_settings_of_its_first_start(tmp_path: Path, script: str) -> None:
    (tmp_path / "config.toml").write_text("first = 1\n")
    reads = 'cat "$4" >>read; exit 75'
    for again in range(2):
        with _job(tmp_path, script, reads, SLURM_RESTART_COUNT=str(again)) as job:
            assert job.wait()[0] == 0
            copy = "runs/name-17/job-17.toml"
            command = f"-m hybridnn train {copy} --set data.name=a b --out runs/name-17 --resume auto"
            assert job.lines("program-calls")[2 * again] == command
            (tmp_path / "config.toml").write_text("edited = 2\n")
    assert job.lines("read") == ["first = 1", "first = 1"]


def test_job_trains_with_the_settings_of_its_submission(tmp_path: Path, script: str) -> None:
    (tmp_path / "config.toml").write_text("edited = 2\n")
    with _job(tmp_path, script, 'cat "$4" >>read', SETTINGS='name = "a $b \\n"\n[x]') as job:
        assert job.wait()[0] == 0
        assert job.lines("read") == ['name = "a $b \\n"', "[x]"]


def test_job_without_a_settings_file_has_none(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 0", arguments="--epochs=3", SETTINGS="a = 1") as job:
        assert job.wait()[0] == 0
        assert job.lines("program-calls")[0] == "-m hybridnn train --epochs=3 --out runs/name-17 --resume auto"


@pytest.mark.parametrize("name", ["train.sbatch", "gpu_train.sbatch", "study_array.sbatch", "strong_scaling.sbatch"])
def test_open_mpi_settings_keep_those_of_the_user(tmp_path: Path, name: str) -> None:
    task = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2"}
    with _job(tmp_path, name, "exit 0", arguments="", **task) as job:
        assert job.wait()[0] == 0
        assert job.lines("open-mpi")[0] == "osc ^ucx btl ^ofi"
    with _job(tmp_path, name, "exit 0", arguments="", OMPI_MCA_osc="rdma", OMPI_MCA_btl="", **task) as job:
        assert job.wait()[0] == 0
        assert job.lines("open-mpi")[-1] == "osc rdma btl "


ARRAY = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "19", "place": "here"}


@pytest.mark.parametrize(("arguments", "cell"), [("", "2"), ("1000", "1002")])
def test_array_task_runs_the_cell_with_its_index(tmp_path: Path, arguments: str, cell: str) -> None:
    with _job(tmp_path, "study_array.sbatch", "exit 1", arguments=arguments, **ARRAY) as job:
        assert job.wait() == (1, "")
        launch = f"{tmp_path}/launch -n {{ranks}}"
        assert job.lines("program-calls")[0] == (
            f"-m hybridnn study run laugier-figure-5 --out here --cell {cell} --launcher {launch}"
        )
        assert job.lines("scontrol-calls") == []


def test_warned_array_task_is_requeued_alone(tmp_path: Path) -> None:
    with _job(tmp_path, "study_array.sbatch", WAITS, arguments="", **ARRAY) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (0, "requeue: the cell runs later\n")
        assert job.lines("signals") == ["USR1"]
        assert job.lines("scontrol-calls") == ["requeue 16_2"]  # the job id alone would requeue the whole array


@pytest.mark.parametrize("name", [*REQUEUING, "study_array.sbatch"])
def test_warning_before_the_run_has_started_is_not_lost(tmp_path: Path, name: str) -> None:
    """The signal comes before the script has the process id of the run."""
    more = {"arguments": "", **ARRAY} if name == "study_array.sbatch" else {}
    with _job(tmp_path, name, WAITS, before_step="kill -USR1 $$\n", **more) as job:
        code, out = job.wait()
        assert (code, out.startswith("requeue: ")) == (0, True)
        assert len(job.lines("scontrol-calls")) == 1


def test_cancellation_before_the_study_has_started_is_not_lost(tmp_path: Path) -> None:
    with _job(tmp_path, "study_array.sbatch", WAITS, arguments="", before_step="kill -TERM $$\n", **ARRAY) as job:
        assert job.wait() == (75, "")
        assert job.lines("signals") == ["TERM"]
        assert job.lines("scontrol-calls") == []


def test_cancelled_task_ends_its_study_and_is_not_requeued(tmp_path: Path) -> None:
    with _job(tmp_path, "study_array.sbatch", WAITS, arguments="", **ARRAY) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == (75, "")
        assert job.lines("signals") == ["TERM"]
        assert job.lines("scontrol-calls") == []


def test_restarts_of_a_task_end_at_their_limit(tmp_path: Path) -> None:
    changes = {"most_restarts": "2", "SLURM_RESTART_COUNT": "2", **ARRAY}
    with _job(tmp_path, "study_array.sbatch", "exit 75", arguments="", **changes) as job:
        assert job.wait() == (75, "not requeued after 2 restarts\n")


def test_report_of_an_array_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    with _job(tmp_path, "study_array.sbatch", "exit 1", arguments="", place="here") as job:
        assert job.wait() == (1, "")
        assert job.lines("program-calls")[0] == "-m hybridnn study report here"


def test_warned_study_still_writes_its_report(tmp_path: Path) -> None:
    reports = '[ "$4" != report ] || exit 1\n'
    with _job(tmp_path, "strong_scaling.sbatch", reports + WAITS, arguments="", place="here") as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (75, "")
        assert job.lines("program-calls")[2] == "-m hybridnn study report here"


def test_script_waits_for_a_run_that_continues_after_a_warning(tmp_path: Path, script: str) -> None:
    continuing = WAITS.replace("exit 75", "sleep 0.5; exit 3", 1)
    with _job(tmp_path, script, continuing) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (3, "")
        assert job.lines("scontrol-calls") == []


def test_cancelled_job_is_not_requeued(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, WAITS) as job:
        training = job.wait_until_it_trains()
        job.process.send_signal(signal.SIGTERM)  # Slurm sends it to all processes of the job
        os.kill(training, signal.SIGTERM)
        code, out = job.wait()
        assert (code, job.lines("signals")) == (75, ["TERM"]), out
        assert job.lines("scontrol-calls") == []


def test_restarts_end_at_their_limit(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 75", most_restarts="2", SLURM_RESTART_COUNT="1") as job:
        assert job.wait()[0] == 0
    with _job(tmp_path, script, "exit 75", most_restarts="2", SLURM_RESTART_COUNT="2") as job:
        code, out = job.wait()
        assert code == 75
        assert out == "not requeued after 2 restarts; to go on, submit the same with RUN=runs/name-17\n"
        assert len(job.lines("scontrol-calls")) == 1


def test_requeue_may_end_scontrol_before_it_returns(tmp_path: Path, script: str) -> None:
    with _job(tmp_path, script, "exit 75", scontrol_code="$(kill -TERM $$)") as job:
        code, text = job.wait()
        assert code == 0
        assert "not requeued" not in text
        assert job.lines("scontrol-calls") == ["requeue 17"]


def test_refused_requeue_prints_the_command_to_resume(tmp_path: Path, script: str) -> None:
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
        ("3", {"SLURM_LOCALID": "2"}, "3"),  # Slurm has set one GPU per rank already
        ("", {"SLURM_LOCALID": "1"}, "none"),
        ("0,1", {}, "0"),
    ],
)
def test_each_rank_sees_one_gpu(tmp_path: Path, visible: str, rank: dict[str, str], gpu: str) -> None:
    with _job(tmp_path, "gpu_train.sbatch", "exit 0", CUDA_VISIBLE_DEVICES=visible, **rank) as job:
        assert job.wait() == (0, "")
        assert job.lines("program-calls")[1].endswith(f" gpu {gpu}")


def test_scripts_that_requeue_differ_only_in_the_gpu() -> None:
    plain, gpu = ((JOBS / name).read_text().partition("# ---- run and requeue")[2] for name in REQUEUING)
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
    assert re.search(r'launcher=\$\("\$python" -m hybridnn.hpc_jobs.launcher "\$folder/', text)
    assert "export OMPI_MCA_osc=${OMPI_MCA_osc-^ucx} OMPI_MCA_btl=${OMPI_MCA_btl-^ofi} " in text
    assert "#SBATCH --signal=B:USR1@" in text


def test_list_of_scripts() -> None:
    scripts = {path.name for path in JOBS.glob("*.sbatch")}
    assert scripts == {"train.sbatch", "gpu_train.sbatch", "strong_scaling.sbatch", "study_array.sbatch"}
