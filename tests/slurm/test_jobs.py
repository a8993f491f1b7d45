"""The batch scripts on a real Slurm of several node daemons."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hybridnn.runs.run_files import run_status
from hybridnn.study.study_folder import StudyFolder
from mpi_runner.slowness import wait_until
from reference.command_line import records_of
from slurm.cluster import (
    EPOCHS,
    LONG,
    RUN,
    Cluster,
    assert_same,
    checkpoints,
    edited_script,
    epochs,
    submit_run,
    wait_until_it_trains,
)

pytestmark = pytest.mark.timeout(1500)

STUDY = """
name = "tiny"
base.training = {epochs = 2, batch_size = 16}
base.model.hidden = [8]
base.data = {name = "synthetic", rows = 200, synthetic = {test_samples = 50}}
axes = {ranks = [1, 2], seeds = [0, 1]}
"""
CELL = "ranks-2_seed-0"


@pytest.fixture(scope="module")
def undisturbed(_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run, which searches for its launcher."""
    job, run = submit_run(_cluster, tmp_path_factory.mktemp("undisturbed"), "")
    text = job.wait(LONG)
    assert "launcher: " in text
    assert (run / f"launcher-{job.number}").read_text().strip().rpartition(" ")[0] in text
    return run


def test_four_ranks_train_on_two_nodes(undisturbed: Path) -> None:
    header = records_of(undisturbed)[0]
    assert (header["ranks"], header["layout"]["stages"], header["nodes"]) == (4, [[2, 2]], 2)
    assert header["threads_per_rank"] == 1
    assert run_status(undisturbed) == "finished"
    assert epochs(undisturbed) == list(range(1, EPOCHS + 1))


def test_warning_before_the_time_limit_requeues_the_run(cluster, tmp_path, launcher, undisturbed) -> None:
    job, run = submit_run(cluster, tmp_path, launcher)
    wait_until_it_trains(job, run)
    (tmp_path / "config.toml").write_text("of = 'the next run'")
    # This is the signal of "--signal=B:USR1@120".
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    wait_until(lambda: "requeue: " in job.text(), LONG, "the run is requeued")
    assert checkpoints(run)
    assert run_status(run) != "finished"
    assert not (run / "weights.npz").exists()
    job.wait(LONG)
    assert job.facts()["Restarts"] == "1"
    assert_same(run, undisturbed)


def test_time_limit_requeues_the_run(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    # Slurm checks time limits periodically and warns up to a minute early: here 20 to 35 seconds after the start.
    script = edited_script("train.sbatch", tmp_path, launcher=launcher)
    job = cluster.submit(script, "--epochs=100000", options=["--time=1", "--signal=B:USR1@10"])
    run = tmp_path / "runs" / f"train-{job.number}"
    wait_until(lambda: "requeue: " in job.text(), 120, "the run is requeued", job.text)
    assert "stopped by SIGUSR1 after step " in job.text()
    steps = [int(name.removeprefix("step-")) for name in checkpoints(run)]
    done = epochs(run)
    wait_until(lambda: len(epochs(run)) > len(done), LONG, "the run goes on", job.text)
    resumed = [record["step"] for record in records_of(run) if record["kind"] == "resumed"]
    assert resumed[0] == max(steps)  # on a busy machine the job may reach the limit again
    assert epochs(run)[: len(done)] == done
    cluster.run("scancel", job.number)
    job.wait(60, state="CANCELLED")


def test_cancelled_run_ends_and_stays_ended(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    job, run = submit_run(cluster, tmp_path, launcher)
    wait_until_it_trains(job, run)
    cluster.run("scancel", job.number)
    job.wait(60, state="CANCELLED")
    wait_until(lambda: not cluster.queued(), 20, "the queue is empty")
    wait_until(lambda: not cluster.processes(), 10, "no process of the job lives on")
    assert job.facts()["Restarts"] == "0"
    assert checkpoints(run)
    assert run_status(run) != "finished"


def test_rank_that_is_killed_ends_the_job(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    job, run = submit_run(cluster, tmp_path, launcher)
    wait_until_it_trains(job, run)
    ranks = [process for process in cluster.processes() if _is_rank(process)]
    assert len(ranks) == 4
    os.kill(ranks[-1], signal.SIGKILL)
    job.wait(60, state="FAILED")
    assert job.exit_code not in (0, 75)
    wait_until(lambda: not cluster.processes(), 20, "no process of the job lives on")
    assert run_status(run) != "finished"


def _is_rank(process: int) -> bool:
    arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return arguments[:4] == [sys.executable.encode(), b"-m", b"hybridnn", b"train"]


def test_srun_that_does_not_connect_the_ranks_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    job, run = submit_run(cluster, tmp_path, "srun --mpi=none -n")
    text = job.wait(60, state="FAILED")
    assert job.exit_code == 2
    assert "Error: srun started 4 processes, but MPI sees 1 rank: start " in text
    assert "Traceback" not in text
    assert run_status(run) == "absent"


def test_each_rank_of_a_node_has_its_own_gpu(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    # Without GPUs, the test checks only the variable of each rank.
    script = edited_script("gpu_train.sbatch", tmp_path, launcher=launcher)
    show = 'import os, socket; print("sees", socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)'
    (tmp_path / "show.py").write_text(show)
    text = script.read_text().replace("#SBATCH --gpus-per-node=4\n", "export CUDA_VISIBLE_DEVICES=6,7\n")
    script.write_text(text.replace("-m hybridnn train", "show.py"))
    printed = cluster.submit(script, options=["--cpus-per-task=1"]).wait(30).splitlines()
    seen = sorted(line.partition("sees ")[2] for line in printed if "sees " in line)
    assert [line.split()[1] for line in seen] == ["6", "7", "6", "7"]
    assert len({line.split()[0] for line in seen}) == 2


def test_study_is_submitted_as_arrays_with_a_report(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    submit = [sys.executable, "-m", "hybridnn", "study", "submit", "tiny.toml", "--time", "5", "--partition", "main"]
    result = cluster.run(*submit, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(": 2 cells on ") == 2
    twice = cluster.run(*submit, folder=tmp_path)
    assert twice.stdout.startswith("all 4 cells are finished or queued: nothing to submit\n"), twice.stderr
    study = tmp_path / "runs" / "studies" / "tiny"
    wait_until(lambda: not cluster.queued(), 150, "the arrays and the report are over", lambda: _printed(study))
    for cell in ("ranks-1_seed-0", "ranks-1_seed-1", "ranks-2_seed-0", "ranks-2_seed-1"):
        assert run_status(study / "cells" / cell) == "finished", _printed(study)
    header = records_of(study / "cells" / "ranks-2_seed-0")[0]
    assert (header["ranks"], header["nodes"], header["threads_per_rank"]) == (2, 1, 1)
    assert (study / "report" / "report.md").is_file(), _printed(study)
    again = cluster.run(*submit, folder=tmp_path)
    assert again.stdout == "all 4 cells are finished: nothing to submit\n"


def test_warned_task_of_a_study_is_requeued_or_ends(cluster: Cluster, tmp_path: Path) -> None:
    studies: dict[str, tuple[str, StudyFolder]] = {}
    for key in ("resume", "restart"):
        place = tmp_path / key
        place.mkdir()
        text = STUDY.replace("epochs = 2", "epochs = 1000000").replace("[1, 2], seeds = [0, 1]", "[2], seeds = [0]")
        (place / "tiny.toml").write_text(f"interrupted = '{key}'\n{text}")
        result = cluster.run(sys.executable, "-m", "hybridnn", "study", "submit", "tiny.toml", folder=place)
        assert result.returncode == 0, result.stderr
        folder = place / "runs" / "studies" / "tiny"
        (array,) = json.loads((folder / "slurm" / "1" / "jobs.json").read_text())["arrays"]
        assert array["cells"] == {"0": CELL}
        studies[key] = array["job"], StudyFolder(folder)
    for job, study in studies.values():
        wait_until(lambda: epochs(study.cell(CELL)), LONG, "the cell trains", lambda: _printed(study.path))  # noqa: B023
        assert study.state(CELL).status == "running"
        cluster.run("scancel", "--batch", "--signal=USR1", f"{job}_0")

    job, study = studies["restart"]
    wait_until(lambda: study.state(CELL).status == "timed out", 60, "the cell is over", lambda: _printed(study.path))
    assert study.state(CELL).reason.startswith("ended by SIGUSR1, before the time limit of its job: ")
    wait_until(lambda: f"{job}_0" not in _tasks(cluster), 60, "the task is over")
    assert "requeue: " not in _printed(study.path)

    job, study = studies["resume"]
    resumed = lambda: [r for r in records_of(study.cell(CELL)) if r["kind"] == "resumed"]  # noqa: E731
    wait_until(resumed, LONG, "the cell goes on", lambda: _printed(study.path))
    assert "requeue: the cell runs later" in _printed(study.path)
    assert resumed()[0]["step"] > 0
    cluster.run("scancel", job)
    wait_until(lambda: f"{job}_0" not in _tasks(cluster), 60, "the task is over")
    wait_until(
        lambda: study.state(CELL).status == "interrupted", 60, "its end is noted", lambda: str(study.state(CELL))
    )


def _tasks(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "--noheader", "--array", "--format=%i").stdout.split()


def _printed(study: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted((study / "slurm" / "1").glob("*.out")))


def test_cells_of_a_study_run_in_turn_in_one_job(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY.replace("[1, 2], seeds = [0, 1]", "[1, 2, 4], seeds = [0]"))
    script = edited_script("strong_scaling.sbatch", tmp_path, launcher=launcher, study="tiny.toml", folder="here")
    text = cluster.submit(script).wait(LONG)
    assert "3 of 3 cells are finished" in text
    nodes = {
        ranks: records_of(tmp_path / "here" / "cells" / f"ranks-{ranks}_seed-0")[0]["nodes"] for ranks in (1, 2, 4)
    }
    assert nodes == {1: 1, 2: 1, 4: 2}  # ranks fill one node before the next
    assert (tmp_path / "here" / "report" / "report.md").is_file()
    again = cluster.submit(script).wait(LONG)
    assert "0 of 3 cells to run" in again


OWN_RANKS = """#!/bin/bash
#SBATCH --job-name=own-ranks
set -e
{python} -m hybridnn train config.toml -n 4 --out run --epochs 1
{python} -m hybridnn run -n 2 -m hybridnn.comm.launcher 2 1
"""


def test_commands_start_their_ranks_in_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Four ranks run on both nodes; two must run on the first, or the check of the launch fails."""
    (tmp_path / "config.toml").write_text(RUN)
    script = tmp_path / "own-ranks.sbatch"
    script.write_text(OWN_RANKS.format(python=sys.executable))
    cluster.submit(script).wait(LONG)
    header = records_of(tmp_path / "run")[0]
    assert (header["ranks"], header["nodes"]) == (4, 2)
    assert run_status(tmp_path / "run") == "finished"
