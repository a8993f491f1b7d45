"""Survey of the nodes of an allocation: a process on each, started by ``srun`` or ``mpirun``, reports what it finds.

It needs no MPI, so that a node is named where ranks would not start.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hybridnn.comm.launcher import NODE_LISTS, VERSION_SECONDS, RankLauncher
from hybridnn.comm.placement import Placement
from hybridnn.doctor.mpi_calls import run_checks
from hybridnn.doctor.node_checks import NamedFacts, NodeFacts, check_hardware, check_software, listed
from hybridnn.doctor.report import Finding, failure, ok, warning
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.utils.processes import run_child

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
class Answers:
    """Answers of the nodes of an allocation."""

    facts: Mapping[str, NodeFacts]  # of the nodes where hybridnn works
    problems: Mapping[str, str]  # of those where it does not
    silent: Sequence[str]  # the others


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
        answers = read_answers(end.output, [*ranks])
        alike.extend(NamedFacts(name, facts, ranks.get(name, 1)) for name, facts in answers.facts.items())
        silent = f"within {LAUNCH_LIMITS * limit:g} s" if end.timed_out else f"and {command[0]} {end.summary}"
        return check_answers(answers, f"no answer {silent}")

    findings = run_checks([("all nodes", ask)])
    if len(alike) > 1:
        comparisons = {"same software": check_software, "same hardware": check_hardware}
        findings += run_checks((name, partial(check, alike)) for name, check in comparisons.items())
    return findings


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
        shape = ["--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        return ["srun", *shape, "--overlap", "--cpu-bind=none", "--no-kill", *program], {}
    launcher = RankLauncher.find(environment)
    placement = Placement(nodes=nodes, ranks_per_node=1, binding="none")
    settings = launcher.settings(nodes, environment, placement)
    return launcher.command(nodes, program, environment, placement), settings


def read_answers(output: str, names: Sequence[str]) -> Answers:
    """The answers in the output of the launcher, in the order of the nodes of the allocation."""
    full_names = {_short(name): name for name in names}
    texts: dict[str, str] = {}
    for line in output.splitlines():
        mark, name, text = (*line.split(" ", 2), "", "")[:3]
        if mark == MARK:
            texts[full_names.get(_short(name), name)] = text.strip()
    facts: dict[str, NodeFacts] = {}
    problems: dict[str, str] = {}
    for name in sorted(texts, key=[*names, *texts].index):
        try:
            facts[name] = NodeFacts(**json.loads(texts[name]))
        except (ValueError, TypeError):
            problems[name] = texts[name] or "Python printed nothing"
    # Host files may have other names than the hosts themselves.
    silent = [name for name in names if name not in texts] if len(texts) < len(names) else []
    return Answers(facts, problems, silent)


def check_answers(answers: Answers, silence: str) -> Finding:
    """Whether hybridnn works on every node; `silence` is the problem of nodes without an answer."""
    names: dict[str, list[str]] = {}
    for name, problem in [*answers.problems.items(), *((name, silence) for name in answers.silent)]:
        names.setdefault(problem, []).append(name)
    if not names:
        return ok(f"hybridnn works on {listed([*answers.facts])}")
    what = "; ".join(f"{listed(group)}: {problem}" for problem, group in names.items())
    return failure(
        what, f"see that these nodes run, and have {sys.executable} with hybridnn; or leave them out of the job"
    )


def _short(name: str) -> str:
    """Name of a host without its domain."""
    return name if re.fullmatch(r"[\d.]+", name) else name.partition(".")[0]
