"""Checks of the nodes of a job: whether hybridnn works on each, with the same software, processor, cores and memory.

The nodes of an allocation are asked by a process on each, started by ``srun`` or ``mpirun``. It needs no MPI, so that a
node is named where ranks would not start.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median_low

from hybridnn._version import __version__
from hybridnn.comm.agreement import name_hosts
from hybridnn.comm.launcher import NODE_LISTS, VERSION_SECONDS, Placement, RankLauncher, srun_on_every_node
from hybridnn.comm.mpi import library_version, load_mpi_library, own_cores
from hybridnn.diagnostics.hosts import blas_library, processor_name
from hybridnn.doctor.report import Finding, failure, ok, run_checks, warning
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.utils.files import memory_bytes
from hybridnn.utils.processes import run_child
from hybridnn.utils.text import counted, format_bytes

LEAST_MAJOR: Mapping[str, int] = {"numpy": 2, "scipy": 1, "mpi4py": 4, "pydantic": 2}
"""First major versions of packages that hybridnn works with."""

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MEMORY_TOLERANCE = 0.1  # relative difference up to which nodes have the same memory: a kernel reserves some

NODE_LIMITS = 3
"""Time limits in which a node must answer: Python and its packages may be read from a slow file system."""
LAUNCH_LIMITS = NODE_LIMITS + 1
"""Time limits of the launcher with all nodes."""

MARK = "hybridnn-node"
MOST_BYTES = 900  # of an answer: Slurm may mix longer lines of different nodes
ANSWER = f"""
seconds=$1; shift
text=$(timeout "$seconds" "$@" 2>&1); code=$?
last=$(printf '%s\\n' "$text" | grep '^{{' || printf '%s\\n' "$text" | grep -v '^ *$' | tail -n 1)
[ $code = 124 ] && last="no answer within $seconds s"
printf '{MARK} %s %.{MOST_BYTES}s\\n' "${{SLURMD_NODENAME:-$(uname -n)}}" "$last"
"""
"""Shell script that prints the facts of its node, or the last line of an error. It always ends with success, because a
launcher may end all processes at the first that fails."""


@dataclass(frozen=True)
class NodeFacts:
    """Software and hardware that a process finds on its node."""

    software: Mapping[str, str]  # versions, by name
    processor: str  # model
    cores: float  # cores that the process may use
    memory: int  # physical memory in bytes


@dataclass(frozen=True)
class NamedFacts:
    """Facts of a node, or of one rank where the ranks of a node differ."""

    name: str
    facts: NodeFacts
    ranks: int = 1  # that share the cores


def gather_node_facts(environment: Mapping[str, str]) -> NodeFacts:
    """Facts about the node of this process; loads NumPy and the MPI library, without starting MPI."""
    cores = min(filter(None, (len(own_cores()), cpu_limit(environment, CPU_QUOTA))))
    return NodeFacts(software_versions(), processor_name(), cores, memory_bytes())


def software_versions() -> dict[str, str]:
    """Versions of Python, hybridnn, its packages, the BLAS and the MPI library, by name."""
    found = {"Python": platform.python_version(), "hybridnn": __version__}
    found |= {name: version or "missing" for name, version in package_versions().items()}
    try:
        library = load_mpi()
    except (EnvironmentProblem, OSError, RuntimeError):
        library = "missing"
    return found | {"BLAS": blas_library(), "MPI library": library}


def load_mpi() -> str:
    """Load the MPI library without starting it; returns its name and version, or raises `EnvironmentProblem`."""
    if "mpi4py.MPI" not in sys.modules:
        with contextlib.suppress(ImportError):  # `load_mpi_library` raises it with a better message
            import mpi4py

            mpi4py.rc(initialize=False, finalize=True)
    load_mpi_library()
    return library_version()


def package_versions(version_of: Callable[[str], str] = metadata.version) -> dict[str, str | None]:
    """Installed versions of the packages in `LEAST_MAJOR`; None for a missing one."""
    found: dict[str, str | None] = {}
    for name in LEAST_MAJOR:
        try:
            found[name] = version_of(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def cpu_limit(environment: Mapping[str, str], quota: Path) -> float | None:
    """Processors of this node that may be used at a time; None without a limit.

    Slurm's allocation is in the environment; `quota` is the control group's file with the share of a container, in
    microseconds per period, or ``max``.
    """
    limits = []
    allocated = environment.get("SLURM_CPUS_ON_NODE", "")
    if allocated.isdigit():
        limits.append(float(allocated))
    try:
        share, period = quota.read_text(encoding="ascii").split()[:2]
        if share != "max":
            limits.append(int(share) / int(period))
    except (OSError, ValueError):
        pass  # not Linux, or an older one
    return min(limits, default=None)


# -- comparison --------------------------------------------------------------------------------------------------------


def compare_nodes(nodes: Sequence[NamedFacts]) -> list[Finding]:
    """Findings of the comparison of nodes; empty for a single one."""
    checks = {"same software": check_software, "same hardware": check_hardware} if len(nodes) > 1 else {}
    return run_checks((name, partial(check, nodes)) for name, check in checks.items())


def check_software(nodes: Sequence[NamedFacts]) -> Finding:
    """Whether all nodes have the same versions; those that differ are named."""
    found = []
    for name in dict.fromkeys(name for node in nodes for name in node.facts.software):
        versions = [(node.name, node.facts.software.get(name, "missing")) for node in nodes]
        found.append(_difference(f"{name} ", versions))
    if differences := [text for text in found if text]:
        return failure("; ".join(differences), "use one environment on all nodes, in a folder that all of them see")
    return ok(f"{len(nodes)} nodes with the same versions of {', '.join(nodes[0].facts.software)}")


def check_hardware(nodes: Sequence[NamedFacts]) -> Finding:
    """Whether all nodes have the same processor, cores per rank and memory; those that differ are named."""
    usual_memory = median_low(node.facts.memory for node in nodes)

    def memory(node: NamedFacts) -> str:
        is_usual = abs(node.facts.memory - usual_memory) <= MEMORY_TOLERANCE * usual_memory
        return f"{format_bytes(usual_memory if is_usual else node.facts.memory, binary=True)} of memory"

    evenly = len({node.ranks for node in nodes}) == 1
    values: list[Callable[[NamedFacts], str]] = [
        lambda node: node.facts.processor,
        lambda node: _cores(node.facts.cores) if evenly else f"{_cores(node.facts.cores / node.ranks)} per rank",
        memory,
    ]
    found = [_difference("", [(node.name, value(node)) for node in nodes]) for value in values]
    if differences := [text for text in found if text]:
        return warning("; ".join(differences), "every step waits for the slowest node: ask for nodes of one kind")
    return ok(f"{len(nodes)} nodes with {', '.join(value(nodes[0]) for value in values)}")


def _cores(number: float) -> str:
    return counted(1, "core") if number == 1 else f"{number:.3g} cores"


def _difference(label: str, values: Sequence[tuple[str, str]]) -> str:
    """``node2: numpy 1.26.4, the other 3 have 2.1.0``; empty if the value is the same on all nodes.

    Where no value is more frequent than all others, every node is named.
    """
    names: dict[str, list[str]] = {}
    for name, value in values:
        names.setdefault(value, []).append(name)
    if len(names) == 1:
        return ""
    usual = max(names, key=lambda value: len(names[value]))
    is_tie = sum(len(group) == len(names[usual]) for group in names.values()) > 1
    parts = [f"{name_hosts(group)}: {label}{value}" for value, group in names.items() if is_tie or value != usual]
    return "; ".join(parts) + (" (no majority)" if is_tie else f", the other {len(names[usual])} have {usual}")


# -- nodes of an allocation --------------------------------------------------------------------------------------------


def check_allocation(environment: Mapping[str, str], limit: float) -> list[Finding]:
    """Findings about the nodes of the allocation of this process; empty where it has no other node.

    A node has `NODE_LIMITS` times `limit` seconds for its answer, and the launcher `LAUNCH_LIMITS` times as many.
    """
    alike: list[NamedFacts] = []

    def ask() -> Finding | None:
        try:
            ranks = allocated_nodes(environment)
            if len(ranks) < 2:
                return None
            command, settings = survey_command(len(ranks), environment, NODE_LIMITS * limit)
        except HybridnnError as error:
            advice = "start a process on each: srun --ntasks-per-node=1, or mpirun, with hybridnn doctor"
            return warning(f"the other nodes are not asked: {error}", advice)
        end = run_child(command, LAUNCH_LIMITS * limit, {**environment, **settings})
        silence = f"within {LAUNCH_LIMITS * limit:g} s" if end.timed_out else f"and {command[0]} {end.summary}"
        answers = read_answers(end.output, [*ranks], f"no answer {silence}")
        found = {name: facts for name, facts in answers.items() if isinstance(facts, NodeFacts)}
        alike.extend(NamedFacts(name, facts, ranks.get(name, 1)) for name, facts in found.items())
        return check_answers(answers)

    return run_checks([("all nodes", ask)]) + compare_nodes(alike)


def allocated_nodes(environment: Mapping[str, str]) -> dict[str, int]:
    """Nodes that a batch system or a host file names, and the ranks that Slurm would start on each, else 1.

    Raises `EnvironmentProblem` if Slurm does not list the nodes of its job.
    """
    if nodes := environment.get("SLURM_JOB_NODELIST"):
        if not all(shutil.which(program, path=environment.get("PATH")) for program in ("scontrol", "srun")):
            raise EnvironmentProblem("srun or scontrol is not on PATH")
        end = run_child(["scontrol", "show", "hostnames", nodes], VERSION_SECONDS, environment)
        if end.code != 0:
            raise EnvironmentProblem(f"scontrol show hostnames {end.summary}")
        names = end.output.split()
        tasks = expand_counts(environment.get("SLURM_TASKS_PER_NODE", ""))
        return dict(zip(names, tasks if len(tasks) == len(names) else [1] * len(names), strict=True))
    files = [Path(path) for name in NODE_LISTS if (path := environment.get(name))]
    lines = next((file.read_text(encoding="utf-8").splitlines() for file in files if file.is_file()), [])
    return {found.group(): 1 for line in lines if (found := re.match(r"[^\s:#]+", line))}


def expand_counts(text: str) -> list[int]:
    """Numbers per node as Slurm writes them: ``2(x3),1`` is 2, 2, 2, 1; empty for other text."""
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        return []
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(number) for number, times in parts for _ in range(int(times or 1))]


def survey_command(nodes: int, environment: Mapping[str, str], seconds: float) -> tuple[list[str], Mapping[str, str]]:
    """The command that starts a process on each node, and the variables that it needs in addition.

    Raises `HybridnnError` if there is no launcher.
    """
    program = ["sh", "-c", ANSWER, "sh", f"{seconds:g}", sys.executable, "-m", "hybridnn.doctor.node_checks"]
    if environment.get("SLURM_JOB_NODELIST"):
        # Beside steps that run, with all cores of the job, and without PMIx, which may not work.
        return [*srun_on_every_node(nodes), "--overlap", "--cpu-bind=none", "--no-kill", *program], {}
    launcher = RankLauncher.find(environment)
    placement = Placement(nodes=nodes, ranks_per_node=1, binding="none")
    settings = launcher.settings(nodes, environment, placement)
    return launcher.command(nodes, program, environment, placement), settings


def read_answers(output: str, names: Sequence[str], silence: str) -> dict[str, NodeFacts | str]:
    """The facts of every node, or why it has none, from the output of the launcher.

    `names` are the nodes of the allocation, whose order they get; `silence` is the problem of those without an answer.
    """
    full_names = {_short(name): name for name in names}
    texts: dict[str, str] = {}
    for line in output.splitlines():
        mark, name, text = (*line.split(" ", 2), "", "")[:3]
        if mark == MARK:
            texts[full_names.get(_short(name), name)] = text.strip()
    answers: dict[str, NodeFacts | str] = {}
    for name in sorted(texts, key=[*names, *texts].index):
        try:
            answers[name] = NodeFacts(**json.loads(texts[name]))
        except (ValueError, TypeError):
            answers[name] = texts[name] or "Python printed nothing"
    # Host files may have other names than the hosts themselves.
    silent = [name for name in names if name not in texts] if len(texts) < len(names) else []
    return answers | dict.fromkeys(silent, silence)


def check_answers(answers: Mapping[str, NodeFacts | str]) -> Finding:
    """Whether hybridnn works on every node."""
    names: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if isinstance(answer, str):
            names.setdefault(answer, []).append(name)
    if not names:
        return ok(f"hybridnn works on {name_hosts([*answers])}")
    what = "; ".join(f"{name_hosts(group)}: {problem}" for problem, group in names.items())
    return failure(
        what, f"see that these nodes run, and have {sys.executable} with hybridnn; or leave them out of the job"
    )


def _short(name: str) -> str:
    """Name of a host without its domain."""
    return name if re.fullmatch(r"[\d.]+", name) else name.partition(".")[0]


if __name__ == "__main__":
    print(json.dumps(asdict(gather_node_facts(os.environ))))
