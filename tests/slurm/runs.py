"""Training runs of batch jobs: submission, and what their folders hold."""

from __future__ import annotations

from pathlib import Path

from hybridnn.runs.run_files import run_status
from mpi_runner.slowness import wait_until
from reference.command_line import assert_same_weights, records_of
from slurm.cluster import Cluster, Job, edited_script

EPOCHS = 12
RUN = f"""
training = {{epochs = {EPOCHS}, batch_size = 16, dtype = "float64", checkpoint_every = 100}}
parallel = {{batch = 2, model = 2}}
model.hidden = [48, 32]
"""
LONG = 600


def epochs(folder: Path) -> list[int]:
    return [record["epoch"] for record in records_of(folder, "epoch")]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def submit_run(
    cluster: Cluster, folder: Path, launcher: str, *options: str, settings: str = RUN, **values: str
) -> tuple[Job, Path]:
    """Submit ``train.sbatch`` with a file of settings, and return the job and its run folder."""
    (folder / "config.toml").write_text(settings)
    script = edited_script("train.sbatch", folder, launcher=launcher, **values)
    job = cluster.submit(script, "config.toml", options=options)
    return job, folder / "runs" / f"train-{job.number}"


def wait_until_it_trains(job: Job, run: Path) -> None:
    wait_until(lambda: epochs(run), LONG, f"{run.name} has an epoch", job.text)
    assert run_status(run) != "finished"


def assert_same(run: Path, undisturbed: Path) -> None:
    """Assert bit-identical weights, and a history without gap or duplicate."""
    assert run_status(run) == "finished"
    assert_same_weights(run, undisturbed)
    assert epochs(run) == list(range(1, EPOCHS + 1))
