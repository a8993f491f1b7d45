"""Studies as Slurm jobs: groups of cells, job arrays, and their submission."""

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridnn.config.settings import to_toml
from hybridnn.data import dataset_info
from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import read_manifest
from hybridnn.study.submit import SlurmOptions, Submission, fill_in_script, plan_submission, submit
from reference.finished_runs import write_run

STUDY = 'name = "s"\naxes = {ranks = [1, 4], seeds = [0, 1, 2]}'
FAKE_SLURM = {
    "sbatch": """
        for argument in "$@"; do printf '%s\\n' "$argument"; done >>"$FAKE/calls"
        echo --- >>"$FAKE/calls"
        number=$(grep -c -e --- "$FAKE/calls")
        if [ "$number" -ge "$FAILS_AT" ]; then
          printf 'sbatch: error: noise\\nsbatch: error: invalid partition\\n' >&2
          exit 1
        fi
        echo "$((number + 100));cluster"
    """,
    "squeue": """
        echo "$@" >>"$FAKE/queries"
        cat "$FAKE/queue"
        [ ! -s "$FAKE/queue.error" ] || { cat "$FAKE/queue.error" >&2; exit 1; }
    """,
    "sinfo": 'cat "$FAKE/partitions"',
    "scontrol": """echo "Configuration data as of today"; echo "MaxArraySize            = $MAX_ARRAY_SIZE" """,
}
PARTITIONS = {
    "debug": "debug|2/0/0/2|1|2|1",
    "main": "main*|4/12/0/16|4|4|1",
    "threads": "threads|0/64/0/64|2|32|2",
    "mixed": "mixed|0/24/0/24|2|8+|1",
}


@dataclass
class FakeSlurm:
    """Programs of Slurm, of which sinfo fails until there are partitions."""

    folder: Path

    def queue(self, *tasks: str, error: str = "") -> None:
        (self.folder / "queue").write_text("".join(f"{task}\n" for task in tasks))
        (self.folder / "queue.error").write_text(error)

    def partition(self, name: str) -> None:
        """Let sinfo tell of this partition, if there is one of this name."""
        (self.folder / "partitions").write_text(PARTITIONS[name] + "\n" if name in PARTITIONS else "")

    def jobs(self) -> list[list[str]]:
        """Arguments of every call of sbatch."""
        path = self.folder / "calls"
        return [job.splitlines() for job in path.read_text().split("---\n") if job] if path.exists() else []


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "fake")
    (tmp_path / "fake").mkdir()
    for name, body in FAKE_SLURM.items():
        (tmp_path / "fake" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "fake" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'fake'}:/usr/bin:/bin")
    for name, value in (("FAKE", str(tmp_path / "fake")), ("FAILS_AT", "99"), ("MAX_ARRAY_SIZE", "1001")):
        monkeypatch.setenv(name, value)
    fake.queue()
    return fake


def _plan(tmp_path: Path, text: str = STUDY, options: SlurmOptions | None = None) -> Submission:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return plan_submission(load_study(file), str(file), tmp_path / "out", options or SlurmOptions())


def _finish(submission: Submission, number: int) -> None:
    cell = submission.plan.cells[number]
    write_run(submission.folder.cell(cell.id))
    (submission.folder.cell(cell.id) / "settings.toml").write_text(to_toml(cell.settings))


def test_each_number_of_ranks_has_an_array_of_its_missing_cells(tmp_path: Path) -> None:
    _finish(_plan(tmp_path), 4)
    arrays = _plan(tmp_path).arrays
    assert [(array.ranks, array.cells) for array in arrays] == [(1, (0, 2)), (4, (1, 3, 5))]
    for number in (0, 1, 2, 3, 5):
        _finish(_plan(tmp_path), number)
    assert _plan(tmp_path).arrays == ()


def test_jobs_are_submitted_with_the_report_after_them(tmp_path: Path, slurm: FakeSlurm) -> None:
    options = SlurmOptions(partition="long", time="0:30:00", more=("--account=mine", "--constraint=a&b", "-c2"))
    assert submit(_plan(tmp_path, options=options)) == (["101", "102"], "103")
    ones, fours, report = slurm.jobs()
    folder = tmp_path / "out" / "slurm" / "1"
    script = str(folder / "study_array.sbatch")
    named = ["--partition=long", "--time=0:30:00", "--account=mine", "--constraint=a&b", "-c2"]
    output, one = f"--output={folder}/%x-%A_%a.out", "--cpus-per-task=1"
    assert ones == ["--parsable", "--job-name=s-1", output, "--array=0,2,4", "--ntasks=1", one, *named, script]
    assert fours == ["--parsable", "--job-name=s-4", output, "--array=1,3,5", "--ntasks=4", one, *named, script]
    assert "--dependency=afterany:101:102" in report
    assert report[-2:] == ["--ntasks=1", script]
    assert [cell.id for cell in read_manifest(tmp_path / "out").cells][3] == "ranks-4_seed-1"
    # The jobs read a copy of the study, and another submission has a folder of its own.
    assert (folder / "study.toml").read_text() == STUDY
    (line,) = [line for line in Path(script).read_text().splitlines() if line.startswith("study=")]
    assert line.startswith(f"study={shlex.quote(str(folder / 'study.toml'))} ")
    assert _plan(tmp_path).job_folder == tmp_path / "out" / "slurm" / "2"


@pytest.mark.parametrize(
    ("compares", "options", "expected"),
    [
        ("times", SlurmOptions(), ["--exclusive"]),
        ("times", SlurmOptions(more=("--exclusive=user",)), ["--exclusive=user"]),
        ("times", SlurmOptions(share_nodes=True), []),
        ("training", SlurmOptions(), []),
    ],
)
def test_timed_cells_ask_for_whole_nodes(tmp_path, compares, options, expected) -> None:
    submission = _plan(tmp_path, f'compares = "{compares}"\n{STUDY}', options)
    for array in submission.arrays:
        assert [word for word in submission.array_command(array) if word.startswith("--exclusive")] == expected
    assert "--exclusive" not in submission.report_command(["1"])


def test_refused_job_is_named_with_what_was_submitted_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS_AT", "2")
    with pytest.raises(EnvironmentProblem) as error:
        submit(_plan(tmp_path))
    said = "sbatch: error: noise sbatch: error: invalid partition"
    assert str(error.value) == f"sbatch failed: {said}; already submitted: 101"


def test_values_are_quoted_for_the_shell() -> None:
    value = """a 'b' "c" $HOME # d \\ e"""
    script = fill_in_script('first=1   # stays\nvalue=""  # comment\necho "$value"\n', {"value": value})
    assert script.startswith("first=1   # stays\nvalue=")
    assert "# comment\n" in script
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == value + "\n"
    for wrong in ("", "value=1\nvalue=2\n", "export value=1\n"):
        with pytest.raises(SettingError, match="exactly one line"):
            fill_in_script(wrong, {"value": "x"})


def test_cells_that_are_queued_are_not_queued_again(tmp_path: Path, slurm: FakeSlurm) -> None:
    submit(_plan(tmp_path))  # jobs 101 and 102, and 103 for the report
    assert not (slurm.folder / "queries").exists()  # no earlier submission
    slurm.queue("101_0", "101_2", "101_4", "102_[1-3:2%2]", "102_5")
    again = _plan(tmp_path)
    assert again.arrays == ()
    assert "--noheader --array --format=%i --jobs=101,102\n" in (slurm.folder / "queries").read_text()
    assert sorted(again.queued.items())[:2] == [("ranks-1_seed-0", "101"), ("ranks-1_seed-1", "101")]

    slurm.queue("101_2", "102_[3,5]")  # one is running, two wait, and the others have ended without a result
    some = _plan(tmp_path)
    assert [(array.ranks, array.cells) for array in some.arrays] == [(1, (0, 4)), (4, (1,))]
    assert "--dependency=afterany:7:101:102" in some.report_command(["7"])

    for error in ("", "slurm_load_jobs error: Invalid job id specified\n"):
        slurm.queue(error=error)
        assert [len(array.cells) for array in _plan(tmp_path).arrays] == [3, 3]


def test_cells_keep_their_jobs_when_their_numbers_change(tmp_path: Path, slurm: FakeSlurm) -> None:
    submit(_plan(tmp_path, 'name = "s"\naxes = {seeds = [5, 6]}'))
    slurm.queue("101_1")  # which is seed 6
    later = _plan(tmp_path, 'name = "s"\naxes = {seeds = [6, 7, 8]}')
    assert later.queued == {"seed-6": "101"}
    assert [array.cells for array in later.arrays] == [(1, 2)]


def test_failing_query_of_the_queue_is_an_error(tmp_path, slurm, monkeypatch) -> None:
    submit(_plan(tmp_path))
    slurm.queue(error="noise\nslurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(EnvironmentProblem, match=r"in the jobs 101, 102 of this study: .*: Unable to contact"):
        _plan(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentProblem, match="there is no program 'squeue'"):
        _plan(tmp_path)
    (tmp_path / "out" / "slurm" / "1" / "jobs.json").write_text("{")
    with pytest.raises(DataError, match=r"jobs\.json: is not valid JSON"):
        _plan(tmp_path)


def test_more_cells_than_an_array_has_make_several(tmp_path, slurm, monkeypatch) -> None:
    monkeypatch.setenv("MAX_ARRAY_SIZE", "4")  # indices 0 to 3
    text = 'name = "s"\naxes = {seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}'
    submission = _plan(tmp_path, text)
    submit(submission)
    script = str(submission.job_folder / "study_array.sbatch")
    jobs = [[part for part in job if part.startswith("--array")] + job[job.index(script) + 1 :] for job in slurm.jobs()]
    assert jobs == [["--array=0-3"], ["--array=0-3", "4"], ["--array=0,1", "8"], []]
    slurm.queue("101_[0-3]", "102_[0,2-3]")  # all but seed 5 of the first two
    assert [(array.cells, array.offset) for array in _plan(tmp_path, text).arrays] == [((5, 8), 5), ((9,), 9)]


@pytest.mark.parametrize(
    ("partition", "ranks", "threads", "refused"),
    [
        ("main", 17, 1, "ranks = 17: a cell needs 17 CPUs, and partition main has 16"),
        ("main", 8, 3, "ranks = 8: a cell needs 24 CPUs, and partition main has 16"),
        ("debug", 3, 1, "ranks = 3: a cell needs 3 CPUs, and partition debug has 2"),
        ("unknown-to-sinfo", 999, 1, ""),
    ],
)
def test_more_ranks_than_the_partition_has_are_refused(tmp_path, slurm, partition, ranks, threads, refused) -> None:
    slurm.partition(partition)
    text = f'name = "s"\nthreads = {threads}\nbase.training.batch_size = 999\naxes = {{ranks = [{ranks}]}}'
    options = SlurmOptions(partition=None if partition == "main" else partition)
    if not refused:
        assert len(_plan(tmp_path, text, options).arrays) == 1
        return
    with pytest.raises(SettingError, match=refused):
        _plan(tmp_path, text, options)
    assert slurm.jobs() == []


@pytest.mark.parametrize(
    ("partition", "ranks", "threads", "per_node", "placement"),
    [
        ("main", 4, 1, None, ["--nodes=1", "--ntasks=4", "--ntasks-per-node=4"]),
        ("main", 6, 1, None, ["--nodes=2", "--ntasks=6", "--ntasks-per-node=3"]),
        ("main", 7, 2, None, ["--nodes=4", "--ntasks=7", "--ntasks-per-node=2"]),
        ("main", 4, 1, 1, ["--nodes=4", "--ntasks=4", "--ntasks-per-node=1"]),
        ("threads", 32, 1, None, ["--nodes=2", "--ntasks=32", "--ntasks-per-node=16"]),
        ("mixed", 17, 1, None, ["--ntasks=17"]),  # more than two of its smallest nodes have
        ("main", 2, 8, None, ["--ntasks=2"]),  # no node has so many CPUs, which Slurm reports
    ],
)
def test_equal_cells_are_placed_alike(tmp_path, slurm, partition, ranks, threads, per_node, placement) -> None:
    slurm.partition(partition)
    text = f'name = "s"\nthreads = {threads}\naxes = {{ranks = [{ranks}]}}'
    submission = _plan(tmp_path, text, SlurmOptions(partition=partition, ranks_per_node=per_node))
    command = submission.array_command(submission.arrays[0])
    assert [option for option in command if option.startswith(("--nodes", "--ntasks"))] == placement
    assert f"--cpus-per-task={threads}" in command


def test_placements_have_arrays_of_their_own(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.partition("main")
    axes = 'ranks_per_node = [1, 2], nodes = [1, 2], threads = [1, 2], binding = ["core", "none"]'
    submission = _plan(tmp_path, f'name = "s"\ncompares = "training"\naxes = {{{axes}}}')
    commands = [" ".join(array.arguments()) for array in submission.arrays]
    assert len(commands) == 8
    assert commands[::3] == [
        "--array=0,1 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1",
        "--array=6,7 --nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=2",
        "--array=12,13 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=1",
    ]


def test_placements_that_the_partition_lacks_are_refused(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.partition("main")
    text = 'name = "s"\naxes = {nodes = [5], ranks_per_node = [1]}'
    with pytest.raises(SettingError, match=r"nodes = 5: partition main has 4 nodes; nothing was submitted"):
        _plan(tmp_path, text)
    with pytest.raises(SettingError, match=r"--ranks-per-node = 2: the study has nodes or ranks_per_node as an axis"):
        _plan(tmp_path, text.replace("5", "2"), SlurmOptions(ranks_per_node=2))


def test_missing_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HYBRIDNN_DATA", raising=False)
    text = 'name = "s"\nbase.data = {{{source}}}\naxes = {{seeds = [0]}}'
    with pytest.raises(DataError, match="is not on disk, and jobs may have no network; nothing was"):
        _plan(tmp_path, text.format(source='name = "airfoil"'))
    with pytest.raises(DataError, match=r"rows\.csv': no such file; nothing was submitted"):
        _plan(tmp_path, text.format(source='file = "rows.csv", targets = ["y"]'))
    with pytest.raises(DataError, match=r"none\.toml"):
        _plan(tmp_path, f'machine = "{tmp_path}/none.toml"\n{STUDY}')
    (tmp_path / "cache" / "airfoil").mkdir(parents=True)
    for file in dataset_info("airfoil").files:
        (tmp_path / "cache" / "airfoil" / file.name).write_text("there")
    for name in ("airfoil", "digits", "synthetic"):
        assert len(_plan(tmp_path, text.format(source=f'name = "{name}"')).arrays) == 1
    manifest = {"name": "other", "description": "", "reduced": False, "cells": []}
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "study.json").write_text(json.dumps(manifest))
    with pytest.raises(SettingError, match="holds another study"):
        _plan(tmp_path)
