"""Batch scripts, with stand-ins for the launcher, for scontrol and for the training."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridnn.study.submit import fill_in_script
from hybridnn.utils.files import shipped_folder
from mpi_runner.slowness import deadline, wait_until

pytestmark = pytest.mark.timeout(600)

JOBS = shipped_folder("hpc_jobs")
TRAIN, GPU, ARRAY, SCALING = "train.sbatch", "gpu_train.sbatch", "study_array.sbatch", "strong_scaling.sbatch"
TASK = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2", "place": "here", "arguments": ""}
PROGRAM = f"""#!/bin/bash
[ "$2 $3" != "hybridnn.batch_jobs run_step" ] || exec "{sys.executable}" "$@"
"""
PROGRAM += """
[ "$2 $3" != "hybridnn.batch_jobs lost_node" ] || exit ${LOST_NODE:-1}
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
        wait_until(lambda: self.lines("ready"), 20)
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


COPIED = "runs/name-17/job-17.toml"


@pytest.mark.parametrize(("script", "code"), [(TRAIN, 0), (TRAIN, 1), (TRAIN, 137), (GPU, 2)])
def test_end_of_the_run_is_the_end_of_the_job(tmp_path: Path, script: str, code: int) -> None:
    with _job(tmp_path, script, f"exit {code}") as job:
        assert job.wait() == (code, "")
        assert job.lines("scontrol-calls") == []
        assert job.lines("launches") == ["-n 4"]
        command, threads = job.lines("program-calls")
        assert command == "-m hybridnn train config.toml --set data.name=a b --out runs/name-17 --resume auto"
        assert threads.startswith("threads 3 3 3 ")
        assert job.lines("open-mpi")[0] == "osc ^ucx btl ^ofi"


@pytest.mark.parametrize("script", [TRAIN, GPU, ARRAY, SCALING])
def test_a_signal_to_a_step_that_has_ended_prints_nothing(script: str) -> None:
    text = (JOBS / script).read_text()
    (notify,) = re.findall(r"^notify\(\) .*", text, re.MULTILINE)
    ended = subprocess.run(["bash", "-c", f"{notify}; step=99999999; notify USR1"], capture_output=True, check=True)
    assert ended.stdout + ended.stderr == b""


def test_variables_of_the_user_are_kept(tmp_path: Path) -> None:
    variables = {"RUN": "runs/name-3", "SLURM_CPUS_PER_TASK": "", "OMPI_MCA_osc": "rdma", "OMPI_MCA_btl": ""}
    with _job(tmp_path, TRAIN, "exit 0", arguments="--epochs=3", SETTINGS="a = 1", **variables) as job:
        assert job.wait()[0] == 0
        command, threads = job.lines("program-calls")
        assert command == "-m hybridnn train --epochs=3 --out runs/name-3 --resume auto"  # no settings without a file
        assert threads.startswith("threads 1 1 1 ")
        assert job.lines("open-mpi") == ["osc rdma btl "]


RUNS = {TRAIN: ({}, "requeue: runs/name-17 goes on later\n", "requeue 17")}
# The job id alone would requeue the whole array.
RUNS[ARRAY] = (TASK, "requeue: the cell runs later\n", "requeue 16_2")


@pytest.mark.parametrize("name", RUNS)
def test_run_that_ends_with_a_node_is_requeued(tmp_path: Path, name: str) -> None:
    more, line, call = RUNS[name]
    with _job(tmp_path, name, "exit 14", LOST_NODE="0", **more) as job:
        assert job.wait() == (0, line)
        assert job.lines("scontrol-calls") == [call]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("before", [False, True])
def test_warning_reaches_the_run_which_is_requeued(tmp_path: Path, name: str, before: bool) -> None:
    """Also if it comes before the script has the process id of the run."""
    more, line, call = RUNS[name]
    with _job(tmp_path, name, WAITS, before_step="kill -USR1 $$\n" * before, **more) as job:
        if not before:
            job.wait_until_it_trains()
            job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (0, line)
        assert before or job.lines("signals") == ["USR1"]
        assert job.lines("scontrol-calls") == [call]


SEARCH = """
if [ "$2 $3" = "hybridnn.batch_jobs launcher" ]; then
  echo "$4" >searched
  while [ ! -e go-on ]; do sleep 0.05; done
  echo "$PWD/launch -n"
  exit
fi
"""


@pytest.mark.parametrize("name", RUNS)
def test_warning_during_the_search_for_a_launcher_requeues(tmp_path: Path, name: str) -> None:
    more, line, call = RUNS[name]
    with _job(tmp_path, name, SEARCH + "exit 4", launcher="", **more) as job:
        wait_until(lambda: job.lines("searched"), 20)
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # the shell handles it after the search
        (tmp_path / "go-on").touch()
        assert job.wait() == (0, line)
        assert job.lines("scontrol-calls") == [call]
        assert job.lines("launches") == []


@pytest.mark.parametrize(
    ("name", "file"),
    [(TRAIN, "runs/name-17/launcher-17"), (ARRAY, "here/slurm/launcher-16"), (SCALING, "here/slurm/launcher-17")],
)
def test_launcher_is_kept_for_the_next_start(tmp_path: Path, name: str, file: str) -> None:
    more = {} if name == TRAIN else {**TASK, "OMPI_MCA_osc": "rdma"}
    (tmp_path / "go-on").touch()
    with _job(tmp_path, name, SEARCH + "exit 0", launcher="", **more) as job:
        assert job.wait()[0] == 0
        assert job.lines("searched") == [file]
        assert job.lines("open-mpi")[0] == f"osc {'^ucx' if name == TRAIN else 'rdma'} btl ^ofi"


def test_job_trains_with_the_settings_of_its_first_start(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("first = 1\n")
    for again in range(2):
        with _job(tmp_path, TRAIN, 'cat "$4" >>read; exit 75', SLURM_RESTART_COUNT=str(again)) as job:
            assert job.wait()[0] == 0
            assert job.lines("program-calls")[2 * again].startswith(f"-m hybridnn train {COPIED} --set data.name=a b ")
            (tmp_path / "config.toml").write_text("edited = 2\n")
    assert job.lines("read") == ["first = 1", "first = 1"]


def test_job_trains_with_the_settings_of_its_submission(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("edited = 2\n")
    with _job(tmp_path, TRAIN, 'cat "$4" >>read', SETTINGS='name = "a $b \\n"\n[x]') as job:
        assert job.wait()[0] == 0
        assert job.lines("read") == ['name = "a $b \\n"', "[x]"]


@pytest.mark.parametrize(("arguments", "cell"), [("", "2"), ("1000", "1002")])
def test_array_task_runs_the_cell_with_its_index(tmp_path: Path, arguments: str, cell: str) -> None:
    with _job(tmp_path, ARRAY, "exit 1", **TASK | {"arguments": arguments}) as job:
        assert job.wait() == (1, "")
        launch = f"{tmp_path}/launch -n {{ranks}}"
        assert job.lines("program-calls")[0] == (
            f"-m hybridnn study run strong_scaling.toml --out here --cell {cell} --launcher {launch}"
        )
        assert job.lines("scontrol-calls") == []


@pytest.mark.parametrize("early", [True, False])
def test_cancelled_task_ends_its_study_and_is_not_requeued(tmp_path: Path, early: bool) -> None:
    with _job(tmp_path, ARRAY, WAITS, before_step="kill -TERM $$\n" * early, **TASK) as job:
        if not early:
            job.wait_until_it_trains()
            job.process.send_signal(signal.SIGTERM)
        assert job.wait() == (75, "")
        assert job.lines("signals") == ["TERM"]
        assert job.lines("scontrol-calls") == []


def test_report_of_an_array_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    with _job(tmp_path, ARRAY, "exit 1", arguments="", place="here") as job:
        assert job.wait() == (1, "")
        assert job.lines("program-calls")[0] == "-m hybridnn study report here"


def test_warned_study_still_writes_its_report(tmp_path: Path) -> None:
    with _job(tmp_path, SCALING, '[ "$4" != report ] || exit 1\n' + WAITS, arguments="", place="here") as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == (75, "")
        assert job.lines("program-calls")[2] == "-m hybridnn study report here"


@pytest.mark.parametrize(
    ("program", "code", "calls"),
    [
        (WAITS.replace("trap", ": trap"), 0, ["requeue 17"]),  # it dies of the warning
        (WAITS.replace("exit 75", "sleep 0.5; exit 3", 1), 3, []),  # it goes on, and ends
    ],
)
def test_script_waits_for_the_end_after_a_warning(tmp_path: Path, program: str, code: int, calls: list[str]) -> None:
    with _job(tmp_path, TRAIN, program) as job:
        job.wait_until_it_trains()
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait()[0] == code
        assert job.lines("scontrol-calls") == calls


def test_cancelled_job_is_not_requeued(tmp_path: Path) -> None:
    with _job(tmp_path, TRAIN, WAITS) as job:
        training = job.wait_until_it_trains()
        job.process.send_signal(signal.SIGTERM)  # Slurm sends it to all processes of the job
        os.kill(training, signal.SIGTERM)
        code, out = job.wait()
        assert (code, job.lines("signals")) == (75, ["TERM"]), out
        assert job.lines("scontrol-calls") == []


@pytest.mark.parametrize(
    ("name", "text"), [(TRAIN, "; to go on, submit the same with RUN=runs/name-17\n"), (ARRAY, "\n")]
)
def test_restarts_end_at_their_limit(tmp_path: Path, name: str, text: str) -> None:
    more = {**RUNS[name][0], "most_restarts": "2"}
    with _job(tmp_path, name, "exit 75", **more, SLURM_RESTART_COUNT="1") as job:
        assert job.wait()[0] == 0
    with _job(tmp_path, name, "exit 75", **more, SLURM_RESTART_COUNT="2") as job:
        assert job.wait() == (75, f"not requeued after 2 restarts{text}")
        assert len(job.lines("scontrol-calls")) == 1


@pytest.mark.parametrize(("scontrol", "code"), [("$(kill -TERM $$)", 0), ("1", 75)])
def test_requeue_may_end_scontrol_but_not_fail(tmp_path: Path, scontrol: str, code: int) -> None:
    with _job(tmp_path, TRAIN, "exit 75", scontrol_code=scontrol) as job:
        found, out = job.wait()
        assert (found, "to go on, submit the same" in out) == (code, code == 75)
        assert job.lines("scontrol-calls") == ["requeue 17"]


ONE_GPU = re.compile(r"one_gpu='\n(.*?)'\n", re.DOTALL)


@pytest.mark.parametrize(
    ("visible", "rank", "gpu"),
    [
        ("0,1,2", {"SLURM_LOCALID": "2"}, "2"),
        ("4,5", {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, "5"),
        ("4,5", {"MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"}, "5"),
        ("3", {"SLURM_LOCALID": "2"}, "3"),  # Slurm has set one GPU per rank already
        ("", {"SLURM_LOCALID": "1"}, ""),
        ("0,1", {}, "0"),
    ],
)
def test_each_rank_sees_one_gpu(visible: str, rank: dict[str, str], gpu: str) -> None:
    (one_gpu,) = ONE_GPU.findall((JOBS / GPU).read_text())
    command = ["bash", "-c", one_gpu, "bash", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"']
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": visible, **rank}
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == f"{gpu}\n"


def test_scripts_that_requeue_differ_only_in_the_gpu() -> None:
    plain, gpu = ((JOBS / name).read_text().partition("folder=${RUN:-}")[2] for name in (TRAIN, GPU))
    assert len(plain) > 3000
    own = re.compile(r"# One GPU of its node.*?\n\n", re.DOTALL)
    gpu = own.sub("", gpu).replace('bash -c "$one_gpu" bash ', "")
    assert gpu.replace("gpu_train", "train").replace("gpu-train", "train") == plain


@pytest.mark.parametrize("name", [TRAIN, GPU, ARRAY, SCALING])
def test_script_names_no_site_and_sets_threads(name: str) -> None:
    text = (JOBS / name).read_text()
    assert "--partition" not in text
    assert "--account" not in text
    assert not re.search(r"(?<![\w}.])/(home|scratch|work|opt|usr/local)\b", text)
    assert "export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads\n" in text
    assert "#SBATCH --signal=B:USR1@" in text
    assert {path.name for path in JOBS.glob("*.sbatch")} == {TRAIN, GPU, ARRAY, SCALING}
