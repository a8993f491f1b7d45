"""Trials of trainings on several nodes: a link or a node has a fault, and the run goes on or is resumed."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cluster.nodes import Nodes, NodesCannotBeMade
from fault_drill.damage import fill, restore_size, small_disk
from fault_drill.finished import Finished, Outcome, checkpoints, compare, read_finished
from fault_drill.launches import Launched, Recipe, new_run, run_job
from fault_drill.moments import MOMENTS
from fault_drill.rank import OVER
from hybridnn.comm.mpi import OVERSUBSCRIBED
from mpi_runner.slowness import deadline

FAST, CRAWL = "none", "20kbit"
CRAWL_SECONDS = 40.0
FULL_DISK_BYTES = 4096
UNREACHED = (
    r"host NODE cannot be reached|hosts (\S+, )*NODE(, \S+)* do not reach each other"
    r"|host NODE, process \d+[^)]*\) gave no sign|no answer from NODE \("
)
SLOW_LINK = r"host NODE is reached slowly|hosts (\S+, )*NODE(, \S+)* reach each other slowly"
NO_DAEMON = r"(?s:failed to report back.{0,600}Remote host:\s+NODE\s)"
LOST_DAEMON = r"(?s:lost communication with a remote daemon.{0,600} on node NODE\s)"
NO_MEMORY = (
    r"(?s:not enough space for /dev/shm.{0,600}Local host:\s+NODE\s)"
    r"|Error on rank \d+ on NODE: the node's shared memory has no room"
)


@dataclass(frozen=True)
class NetworkFault:
    """A fault of a node or of its link."""

    act: Callable[[Nodes, str, Path], None]  # causes it, given the name of the node and the disk of the runs
    ends: bool | None  # whether the run must end; None if it may
    pattern: str = ""  # of the output of a run that ends; NODE is the name of the node
    code: int | None = None  # its exit code, by default any but 0
    at_start: bool = False  # whether the fault is there before the run starts
    loses_node: bool = False  # whether the node no longer exists
    stalls: bool = False  # whether the stall watchdog ends the run; if `ends` is None, when nothing is finished

    def complaint(self, code: int, output: str, node: str) -> str | None:
        """Error in the end of a run with this fault, or None."""
        if code == 0:
            return "exit code 0: the run did not end" if self.ends else None
        if self.ends is False:
            return f"exit code {code} of a run that must go on"
        if self.code is not None and code != self.code:
            return f"exit code {code}, not {self.code}"
        pattern = self.pattern.replace("NODE", node)
        return None if re.search(pattern, output) else f"the output has no match of {pattern!r}"


def _cut_for_a_moment(nodes: Nodes, node: str, disk: Path) -> None:
    nodes.cut(node)
    time.sleep(2)
    nodes.join(node)


def _slow_down(nodes: Nodes, node: str, disk: Path) -> None:
    nodes.set_rate(CRAWL, node)
    time.sleep(4)
    nodes.set_rate(FAST, node)


def _crawl(nodes: Nodes, node: str, disk: Path) -> None:
    """Slow a link down for long: the run stalls, or goes on slowly until the link is repaired."""
    nodes.set_rate(CRAWL, node)

    def repair() -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):  # the nodes may be gone
            nodes.set_rate(FAST, node)

    timer = threading.Timer(CRAWL_SECONDS, repair)
    timer.daemon = True
    timer.start()


def _lose(nodes: Nodes, node: str, disk: Path) -> None:
    """End a node as a power failure does: no process can close its connections."""
    nodes.cut(node)
    nodes.kill(node)


def _fill(folder: str) -> Callable[[Nodes, str, Path], None]:
    return lambda nodes, node, disk: nodes.fill(node, folder)


def _nothing(nodes: Nodes, node: str, disk: Path) -> None:
    pass


NETWORK_FAULTS = {
    "link cut for 2 s": NetworkFault(_cut_for_a_moment, ends=False),
    "link slow": NetworkFault(_slow_down, ends=False),
    "link cut": NetworkFault(lambda nodes, node, disk: nodes.cut(node), True, UNREACHED, 1, stalls=True),
    "node killed": NetworkFault(
        lambda nodes, node, disk: nodes.kill(node), True, f"{NO_DAEMON}|{LOST_DAEMON}|{UNREACHED}", loses_node=True
    ),
    "node lost": NetworkFault(_lose, True, UNREACHED, 1, loses_node=True, stalls=True),
    "clock wrong": NetworkFault(_nothing, ends=False),
    "names gone at start": NetworkFault(lambda nodes, node, disk: nodes.remove_names(node), ends=False, at_start=True),
    "names gone": NetworkFault(lambda nodes, node, disk: nodes.remove_names(node), ends=False),
    "run disk full": NetworkFault(
        lambda nodes, node, disk: fill(disk, FULL_DISK_BYTES), True, "cannot be written: No space left on device", 2
    ),
    "node disk full at start": NetworkFault(_fill("run/node"), True, NO_DAEMON, at_start=True),
    "node disk full": NetworkFault(_fill("run/node"), ends=False),
    "node memory full at start": NetworkFault(_fill("dev/shm"), None, NO_MEMORY, at_start=True),
    "node memory full": NetworkFault(_fill("dev/shm"), ends=False),
    "node memory small": NetworkFault(_nothing, None, NO_MEMORY, at_start=True),
    "link crawls": NetworkFault(_crawl, None, f"{SLOW_LINK}|{UNREACHED}", 1, stalls=True),
}
"""By name."""


STALL_SECONDS = 2.5
SILENT_SECONDS = 5.0
"""Time after which a lost host is given up, instead of 20 s."""

REST_SECONDS = 10.0
"""What remains of the half minute that a job may last, beyond twice the limit of a stall, without `SILENT_SECONDS`."""

SMALL_MEMORY, SMALL_NODE_DISK = "1m", "16m"
PROGRAM = "fault_drill.rank"

RECIPES = (
    Recipe("batch 4", (1, 4, 1), ("--set", "parallel.shared_replicas=false")),
    Recipe("batch 4, shared inside nodes", (1, 4, 1)),
    Recipe("model 4", (1, 1, 4)),
    Recipe("batch 2 x model 2", (1, 2, 2)),
    Recipe("gpipe over 4", (4, 1, 1), ("--method", "gpipe")),
    Recipe("1f1b over 2 x batch 2", (2, 2, 1), ("--method", "1f1b")),
    Recipe("pipedream over 4", (4, 1, 1), ("--method", "pipedream"), exact=False),
)
SMALLER = Recipe("batch 2", (1, 2, 1))
"""Layout on the nodes that remain."""

PLACES = {2: 2, 3: 2, 4: 1}
"""Ranks of a node by number of nodes; the third of three is a spare."""

MOMENT_NAMES = ("a line of the history", "an update", "an evaluation", "a checkpoint begins", "an array is written")


@dataclass(frozen=True)
class NetworkTrial:
    """A trial on several nodes, drawn from the seed and the number."""

    seed: int
    number: int
    fault: str  # key of `NETWORK_FAULTS`
    recipe: Recipe
    nodes: int  # number of nodes
    node: str  # node of the fault
    moment: str
    call: int  # number of the call of the moment, from 1, after the first checkpoint
    rank: int  # the rank that makes this call, and waits until the fault is there
    hours: tuple[float, float]  # error of the node's wall clock in the first run and in the resumed run
    on_new_nodes: bool  # whether a run that has lost its node resumes on new nodes; else on those that remain
    options: tuple[str, ...]  # settings of checkpoints

    def __str__(self) -> str:
        return f"{self.recipe.name} on {self.nodes} nodes, {self.node}"


def draw_network_trial(seed: int, number: int, name: str) -> NetworkTrial:
    """Draw a trial of a fault of `NETWORK_FAULTS`."""
    random = Random(f"{seed} {number}")
    nodes = random.choices((2, 3, 4), (3, 1, 1))[0]
    moment = random.choice(MOMENT_NAMES)
    ahead = random.choice((1, -1)) * random.choice((1.0, 7.5, 30.0))
    settings = {"training.checkpoint_every": random.choice((5, 7))}
    return NetworkTrial(
        seed,
        number,
        name,
        random.choice(RECIPES),
        nodes,
        f"node{random.randint(1, 4 // PLACES[nodes])}",
        moment,
        random.randint(1, min(MOMENTS[moment].calls - 1, 20)),  # the first checkpoint may come after one evaluation
        0 if MOMENTS[moment].first_rank else random.randrange(4),
        (ahead, -ahead) if name == "clock wrong" else (0.0, 0.0),
        random.random() < 0.5,
        tuple(argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")),
    )


@functools.cache
def missing_for_nodes() -> str | None:
    """The reason why no nodes or disks can be made here; None if they can."""
    try:
        with Nodes(1):
            return None
    except NodesCannotBeMade as error:
        return str(error)


class NetworkDrill:
    """Runs trials on several nodes in subfolders of a folder, with a time limit of every run in seconds."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self._undisturbed: dict[tuple[str, int], Finished] = {}
        self._one_at_a_time = threading.Lock()

    def undisturbed(self, trial: NetworkTrial, nodes: Nodes) -> Finished:
        """Results of the training without faults on nodes with as many ranks each."""
        key = trial.recipe.name, PLACES[trial.nodes]
        if key not in self._undisturbed:
            folder = self.folder / "undisturbed" / "-".join(map(str, key)).replace(" ", "-")
            done = _Runs(nodes, folder, self.limit).run(trial.recipe, new_run(trial.recipe, "run"), "run")
            if done.code != 0 or done.hung:
                raise RuntimeError(f"{trial}: the undisturbed run failed: {done.hung or done.output}")
            self._undisturbed[key] = read_finished(folder / "run")
        return self._undisturbed[key]

    def carry_out(self, trial: NetworkTrial, folder: Path) -> Outcome:
        """Run the trial in an empty folder, and check its results."""
        outcome, disk = Outcome(), folder / "disk"
        disk.mkdir()
        memory = SMALL_MEMORY if trial.fault == "node memory small" else "64m"
        with small_disk(disk), contextlib.ExitStack() as stack:
            nodes = stack.enter_context(_made(trial, "64m"))
            with self._one_at_a_time:
                expected = self.undisturbed(trial, nodes)
            if memory == SMALL_MEMORY:
                nodes = stack.enter_context(_made(trial, memory))
            self._first_run(trial, nodes, folder, outcome)
            resumes = not outcome.ended and not NETWORK_FAULTS[trial.fault].at_start
            if not outcome.ended and not outcome.hung:
                self._resume(trial, nodes, folder, outcome, stack)
            if outcome.ended:
                compare(disk / "run", expected, outcome, same_bits=not (_moves(trial) and outcome.injected))
                if resumes and not outcome.resumed:
                    outcome.complaints.append("run 1: it began anew, although there was a checkpoint before the fault")
            if outcome.complaints:
                subprocess.run(["cp", "-a", disk, folder / "left"], check=False)
        return outcome

    def _first_run(self, trial: NetworkTrial, nodes: Nodes, folder: Path, outcome: Outcome) -> None:
        fault, disk = NETWORK_FAULTS[trial.fault], folder / "disk"
        interrupted = any(trial.hours)
        if fault.at_start:
            fault.act(nodes, trial.node, disk)

        def act(process: subprocess.Popen[bytes], markers: Path) -> float:
            now = time.monotonic()
            if interrupted:
                # A process that enters a node is not its child there. The rank goes on waiting: ranks outlive their
                # launcher for a while, in which they could end the training.
                os.killpg(process.pid, signal.SIGKILL)
            else:
                fault.act(nodes, trial.node, disk)
                (markers / OVER).touch()
            return now

        stall = deadline(STALL_SECONDS if fault.stalls else 25)
        limit = (2 * stall if fault.stalls else 0) + deadline(SILENT_SECONDS + REST_SECONDS)
        arguments = [*new_run(trial.recipe, "disk/run"), *trial.options, "--set", f"output.stall_seconds={stall}"]
        runs = _Runs(nodes, folder, self.limit, None if fault.at_start else trial, act)
        done = runs.run(trial.recipe, arguments, "run-0", {trial.node: trial.hours[0]})
        outcome.injected = fault.at_start or done.seconds_after_fault is not None
        outcome.end_seconds = done.seconds if fault.at_start else done.seconds_after_fault or 0.0
        if fault.stalls and fault.ends is None and (verdict := disk / "run" / "stall" / "job.json").exists():
            # A run may go on slowly for a while, so the time counts from when it stood still.
            outcome.end_seconds = min(outcome.end_seconds, time.time() - verdict.stat().st_mtime + stall)
        outcome.ended = done.code == 0
        complaint = done.hung or (None if interrupted else fault.complaint(done.code, done.output, trial.node))
        outcome.hung = done.hung is not None
        if complaint:
            outcome.complaints.append(f"run 0: {complaint}")
            outcome.named = False
        if not outcome.ended and outcome.end_seconds > limit:
            outcome.complaints.append(f"run 0: ended {outcome.end_seconds:.1f} s after the fault, not in {limit:g} s")
            outcome.hung = True

    def _resume(
        self, trial: NetworkTrial, nodes: Nodes, folder: Path, outcome: Outcome, stack: contextlib.ExitStack
    ) -> None:
        """Run again without the fault, from the last checkpoint if there is one."""
        fault, recipe = NETWORK_FAULTS[trial.fault], trial.recipe
        nodes, recipe = _repaired(trial, fault, nodes, folder, stack)
        layout = [] if recipe == trial.recipe else recipe.layout
        if checkpoints(folder / "disk" / "run"):
            arguments = ["train", "--resume", "disk/run", "-q", *layout]
        else:
            arguments = [*new_run(recipe, "disk/run"), *trial.options, "--resume", "auto"]
        done = _Runs(nodes, folder, self.limit).run(recipe, arguments, "run-1", {trial.node: trial.hours[1]})
        if complaint := done.hung or (f"exit code {done.code} without a fault: {done.output}" if done.code else None):
            outcome.complaints.append(f"run 1: {complaint}")
            outcome.hung |= done.hung is not None
        outcome.ended = not done.hung and done.code == 0


def _moves(trial: NetworkTrial) -> bool:
    """Whether the run resumes on another layout."""
    remain = NETWORK_FAULTS[trial.fault].loses_node and not trial.on_new_nodes
    return remain and trial.nodes != 3 and trial.recipe.exact


def _repaired(
    trial: NetworkTrial, fault: NetworkFault, nodes: Nodes, folder: Path, stack: contextlib.ExitStack
) -> tuple[Nodes, Recipe]:
    """Nodes without the fault, and the layout that they can train."""
    if fault.at_start or trial.fault in ("clock wrong", "run disk full"):
        if trial.fault == "run disk full":
            restore_size(folder / "disk")
        return (stack.enter_context(_made(trial, "64m")), trial.recipe) if fault.at_start else (nodes, trial.recipe)
    if not fault.loses_node:
        nodes.join(trial.node)
        nodes.set_rate(FAST, trial.node)
        return nodes, trial.recipe
    remain = not trial.on_new_nodes and (trial.nodes == 3 or trial.recipe.exact)
    if not remain:
        return stack.enter_context(_made(trial, "64m")), trial.recipe
    nodes.remove(trial.node)
    return nodes, SMALLER if _moves(trial) else trial.recipe


def _made(trial: NetworkTrial, memory: str) -> Nodes:
    return Nodes(trial.nodes, slots=PLACES[trial.nodes], shm=memory, local=SMALL_NODE_DISK)


@dataclass(frozen=True)
class _Runs:
    """Runs of ``hybridnn train -n`` on the login node of some nodes."""

    nodes: Nodes
    folder: Path
    limit: float
    trial: NetworkTrial | None = None  # its moment is that of the fault
    act: Callable[[subprocess.Popen[bytes], Path], float] | None = None

    def run(
        self, recipe: Recipe, arguments: Sequence[str], name: str, hours: Mapping[str, float] | None = None
    ) -> Launched:
        trial = self.trial
        self.folder.mkdir(parents=True, exist_ok=True)

        orders: dict[str, object] = {"rank": -1, "hours": hours or {}}
        if trial is not None:
            orders |= {"moment": trial.moment, "call": trial.call, "rank": trial.rank, "error": None, "waits": True}
            orders |= {"after": str(self.folder / "disk" / "run"), "title": f"{trial.fault} at {trial.moment}"}
            if NETWORK_FAULTS[trial.fault].stalls:
                orders["silent_seconds"] = SILENT_SECONDS

        def command(given: str) -> list[str]:
            unset = [argument for variable in OVERSUBSCRIBED for argument in ("-u", variable)]
            train = [arguments[0], "-n", str(recipe.ranks), *arguments[1:]]
            return self.nodes.enter(["env", *unset, sys.executable, "-m", PROGRAM, given, *train], folder=self.folder)

        act = None if trial is None else self.act
        return run_job(command, orders, self.folder, name, self.limit, act=act, program=PROGRAM)
