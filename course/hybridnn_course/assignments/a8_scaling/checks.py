"""Checks of the texts: each raises a failure, or returns nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import isclose
from statistics import fmean, median
from typing import Any

from hybridnn.study.axes import has_values
from hybridnn.study.cells import Cell
from hybridnn.study.statistics import Estimate
from hybridnn_course.assignment import Variant
from hybridnn_course.assignments.a8_scaling.machines import CORES, SIMULATED, machine_of, simulated_row
from hybridnn_course.assignments.a8_scaling.submitted import (
    CLAIMS,
    JOB,
    LAYOUT,
    QUANTITIES,
    REPEATED,
    RESULTS,
    STUDY,
    BatchScript,
    Claim,
    Point,
    Row,
    Submitted,
    parse_script,
    problem,
)

Check = Callable[[Submitted], None]

LEAST_REPEATS = 3
TOLERANCE = 0.02  # of a claim, relative
LEAST_EXPLANATION = 60  # characters

HIDDEN = {"two wide layers": (512, 512), "six narrow layers": (128,) * 6}
MINIBATCH = {"256": 256, "600": 600}
RANKS = {"powers of two": (1, 2, 4, 8, 16), "multiples of three": (1, 3, 6, 12, 24)}


def hidden_of(variant: Variant) -> tuple[int, ...]:
    """Widths of the hidden layers."""
    return HIDDEN[variant["network"]]


def minibatch_of(variant: Variant) -> int:
    """Samples of a minibatch over all ranks."""
    return MINIBATCH[variant["minibatch"]]


def ranks_of(variant: Variant) -> tuple[int, ...]:
    """Numbers of ranks."""
    return RANKS[variant["ranks"]]


# -- study ------------------------------------------------------------------------------------------------------------


def _study_can_be_read(files: Submitted) -> None:
    _ = files.cells


def _network(files: Submitted) -> None:
    wanted = hidden_of(files.variant)
    for cell in files.cells:
        hidden = tuple(cell.settings.model.hidden)
        if hidden != wanted:
            raise problem("another network", f"{STUDY}: {cell.id} has the hidden layers {hidden}, not {wanted}")
        if cell.settings.data.name != "digits":
            raise problem("other data", f"{STUDY}: {cell.id} trains on {cell.settings.data.name}, not on digits")


def _ranks(files: Submitted) -> None:
    _require_ranks(files, {cell.ranks for cell in files.cells}, f"{STUDY}: no cell")


def _require_ranks(files: Submitted, found: set[int], what: str) -> None:
    wanted = ranks_of(files.variant)
    if missing := set(wanted) - found:
        kind = "the most ranks are missing" if missing == {wanted[-1]} else "ranks are missing"
        raise problem(kind, f"{what} has {', '.join(map(str, sorted(missing)))} ranks")


def _others(cell: Cell) -> dict[str, str]:
    return {label: str(value) for label, value in cell.values.items() if label not in LAYOUT | REPEATED}


def _baseline(files: Submitted) -> None:
    """The cells that speed-ups are against have one rank."""
    baseline = files.study.baseline
    for cell in files.cells:
        if baseline:
            wanted = {**{label: text for label, text in _others(cell).items() if label not in baseline}, **baseline}
        else:
            wanted = _others(cell)
        bases = [other for other in files.cells if has_values(other.values, wanted)]
        fewest = min((other.ranks for other in bases), default=0)
        if fewest != 1:
            ranks = f"on {fewest} ranks" if fewest else "which no cell has"
            raise problem("the baseline is parallel", f"{STUDY}: the speed-up of {cell.id} is against a run {ranks}")


def _same_minibatch(files: Submitted) -> None:
    sizes = {cell.settings.training.batch_size for cell in files.cells}
    wanted = minibatch_of(files.variant)
    if len(sizes) > 1:
        shown = ", ".join(map(str, sorted(sizes)))
        raise problem("the minibatch differs between cells", f"{STUDY}: minibatches of {shown} samples over all ranks")
    if sizes != {wanted}:
        raise problem("another minibatch", f"{STUDY}: minibatches of {sizes.pop()} samples, not of {wanted}")


def _repeats(files: Submitted) -> None:
    repeats = Counter(tuple((k, str(v)) for k, v in cell.values.items() if k != "repeat") for cell in files.cells)
    if min(repeats.values()) < LEAST_REPEATS:
        raise problem("too few repeats", f"{STUDY}: every cell runs {min(repeats.values())} times")


STUDY_CHECKS: dict[str, Check] = {
    "it can be read": _study_can_be_read,
    "network and data": _network,
    "numbers of ranks": _ranks,
    "serial baseline": _baseline,
    "the same minibatch everywhere": _same_minibatch,
    "at least 3 repeats": _repeats,
}


# -- job --------------------------------------------------------------------------------------------------------------


def _script(files: Submitted) -> BatchScript:
    return parse_script(files.require_written(JOB))


def _directives(files: Submitted) -> None:
    script = _script(files)
    if not script.shebang.startswith("#!"):
        raise problem("no interpreter", f"{JOB}: the first line must name the interpreter, such as #!/usr/bin/env bash")
    if script.late:
        raise problem("late directive", f"{JOB}: Slurm ignores {script.late[0]!r}, which follows a command")


def _time_limit(files: Submitted) -> None:
    time = _script(files).options.get("time", "")
    if not re.fullmatch(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})", time):
        raise problem("no time limit", f"{JOB}: --time is {time or 'missing'}")


def _tasks(script: BatchScript) -> tuple[int, int]:
    """Nodes, and ranks on each."""
    nodes = script.number("nodes", 1)
    tasks = script.number("ntasks", nodes)
    return nodes, script.number("ntasks-per-node", -(-tasks // nodes))


def _enough_ranks(files: Submitted) -> None:
    nodes, per_node = _tasks(_script(files))
    most = max(ranks_of(files.variant))
    if nodes * per_node < most:
        raise problem("too few tasks", f"{JOB}: {nodes} x {per_node} tasks, and the study has cells of {most} ranks")


def _cores(files: Submitted) -> None:
    script = _script(files)
    threads, (_, per_node) = script.number("cpus-per-task", 1), _tasks(script)
    cores = _cores_of_node(files)
    if per_node * threads > cores:
        text = f"{JOB}: {per_node} tasks of {threads} CPUs on a node of {cores} cores"
        raise problem("more threads than cores", text)
    if threads != files.study.keys.threads:
        text = f"{JOB}: {threads} CPUs per task, and {STUDY} has {files.study.keys.threads} threads per rank"
        raise problem("threads are not CPUs", text)


def _cores_of_node(files: Submitted) -> int:
    """Cores of the nodes in the data, or without data those of the simulated machine."""
    if not files.texts[RESULTS].strip():
        return CORES
    numbers = {row.columns.get("cores_per_node", "") for row in files.rows}
    return min((int(text) for text in numbers if re.fullmatch(r"[0-9]+", text or "")), default=CORES)


def _exclusive(files: Submitted) -> None:
    if "exclusive" not in _script(files).options:
        raise problem("shared nodes", f"{JOB}: without --exclusive, jobs of others run on the same nodes")


RUNS_STUDY = re.compile(r"hybridnn[\"']?\s+study\s+(run|submit)\b")


def _runs_the_study(files: Submitted) -> None:
    commands = _script(files).commands
    found = [command for command in commands if RUNS_STUDY.search(command)]
    if not found or not any(STUDY in command for command in commands):
        raise problem("runs no study", f"{JOB}: no command runs `hybridnn study run {STUDY}`")
    for command in found:
        if re.search(r"\b(srun|mpirun|mpiexec)\b", command[: RUNS_STUDY.search(command).start()]):  # type: ignore[union-attr]
            raise problem("the study in every rank", f"{JOB}: this starts the whole study on every rank: {command}")


JOB_CHECKS: dict[str, Check] = {
    "directives": _directives,
    "time limit": _time_limit,
    "tasks for all ranks": _enough_ranks,
    "cores for all threads": _cores,
    "exclusive nodes": _exclusive,
    "the study runs once": _runs_the_study,
}


# -- results ----------------------------------------------------------------------------------------------------------


def _complete(files: Submitted) -> None:
    planned, rows = {cell.id for cell in files.cells}, Counter(row.id for row in files.rows)
    for name in planned:
        if rows[name] != 1:
            raise problem("incomplete data", f"{RESULTS}: {rows[name]} finished rows of {name}")
    if unknown := set(rows) - planned:
        raise problem("rows of another study", f"{RESULTS}: {min(unknown)} is no cell of {STUDY}")


def _ranks_in_data(files: Submitted) -> None:
    cells = {cell.id: cell for cell in files.cells}
    for row in files.rows:
        if row.id in cells and row.ranks != cells[row.id].ranks:
            raise problem("other ranks", f"{RESULTS}: {row.id} ran on {row.ranks} ranks, not on {cells[row.id].ranks}")
    _require_ranks(files, {row.ranks for row in files.rows}, f"{RESULTS}: no row")


def _minibatch_in_data(files: Submitted) -> None:
    for row in files.rows:
        if row.numbers["batch_size"] != minibatch_of(files.variant):
            text = f"{RESULTS}: {row.id} has minibatches of {row.numbers['batch_size']:g} samples"
            differ = len({other.numbers["batch_size"] for other in files.rows}) > 1
            raise problem("minibatches differ in the data" if differ else "other minibatches in the data", text)


def _network_in_data(files: Submitted) -> None:
    network = "-".join(map(str, (64, *hidden_of(files.variant), 10)))
    for row in files.rows:
        if row.columns.get("network", "") != network:
            raise problem("another network in the data", f"{RESULTS}: {row.id} is not of the network {network}")


def _one_machine(files: Submitted) -> None:
    for name in ("cpu_model", "cores_per_node", "threads_per_rank", "version.hybridnn"):
        values = {row.columns.get(name, "") for row in files.rows}
        if len(values) > 1:
            raise problem("several machines", f"{RESULTS}: {name} is {' and '.join(sorted(map(str, values)))}")
    wanted = f"simulated ({machine_of(files.variant['machine']).name})"
    for row in files.rows:
        if _is_simulated(row) and row.columns.get("cpu_model") != wanted:
            raise problem("another machine", f"{RESULTS}: {row.id} is {row.columns.get('cpu_model')}, not {wanted}")


def _is_simulated(row: Row) -> bool:
    return row.columns.get("launcher") == SIMULATED


def _independent(files: Submitted) -> None:
    for point in files.points:
        if len(point.rows) < LEAST_REPEATS:
            raise problem("too few repeats in the data", f"{RESULTS}: {len(point.rows)} rows of {dict(point.values)}")
        if len(set(point.times())) < len(point.rows):
            text = f"{RESULTS}: repeats of {point.rows[0].id} have the same time to the last digit"
            raise problem("copied repeats", text)


def _unchanged(files: Submitted) -> None:
    """Simulated rows are what the simulation gives."""
    cells = {cell.id: cell for cell in files.cells}
    for row in files.rows:
        seed = row.columns.get("seed") or ""
        if not _is_simulated(row) or row.id not in cells:
            continue
        again = simulated_row(cells[row.id], _simulated_machine(row), int(seed) if seed.isdigit() else 0)
        if not isclose(again["seconds_per_epoch"], row.numbers["seconds_per_epoch"], rel_tol=1e-6):
            raise problem("changed data", f"{RESULTS}: {row.id} is not what the simulation gives")


def _simulated_machine(row: Row) -> str:
    return "slow" if "slow" in row.columns.get("cpu_model", "") else "fast"


RESULTS_CHECKS: dict[str, Check] = {
    "every cell once": _complete,
    "ranks of the data": _ranks_in_data,
    "minibatch of the data": _minibatch_in_data,
    "network of the data": _network_in_data,
    "one machine": _one_machine,
    "independent repeats": _independent,
    "as measured": _unchanged,
}


# -- claims -----------------------------------------------------------------------------------------------------------


def _claims_can_be_read(files: Submitted) -> None:
    for number, claim in enumerate(files.claims, 1):
        if claim.quantity not in QUANTITIES:
            text = f"{CLAIMS}, claim {number}: quantity {claim.quantity!r}; known are {', '.join(QUANTITIES)}"
            raise problem("claims cannot be read", text)


def _point(files: Submitted, number: int, claim: Claim) -> Point:
    found = files.points_of(claim.where)
    if not found:
        raise problem("not in the data", f"{CLAIMS}, claim {number}: {RESULTS} has no row with {claim.where}")
    if len(found) > 1:
        raise problem("several points", f"{CLAIMS}, claim {number}: {len(found)} points have {claim.where}")
    return found[0]


def _measured(files: Submitted) -> None:
    for number, claim in enumerate(files.claims, 1):
        _point(files, number, claim)


def _known_claims(files: Submitted) -> list[tuple[int, Claim, Point, Estimate]]:
    """The claims about points in the data, with what these say."""
    found = []
    for number, claim in enumerate(files.claims, 1):
        points = files.points_of(claim.where)
        if len(points) == 1 and claim.quantity in QUANTITIES:
            estimate = files.measured(claim.quantity, points[0], files.base_of(points[0]))
            found.append((number, claim, points[0], estimate))
    return found


def _near(value: float, other: float) -> bool:
    return abs(value - other) <= TOLERANCE * abs(other) + 1e-9


def _values(files: Submitted) -> None:
    _required(files)
    for number, claim, point, right in _known_claims(files):
        if _near(claim.value, right.value):
            continue
        kind = next(
            (kind for kind, value in _wrong_values(files, claim, point).items() if _near(claim.value, value)), ""
        )
        text = f"{CLAIMS}, claim {number}: {claim.quantity} is {claim.value:g}, the data have {right.value:.4g}"
        raise problem(kind or "a value that the data do not have", text)


def _wrong_values(files: Submitted, claim: Claim, point: Point) -> Mapping[str, float]:
    """What a claim would state by usual mistakes, by their names."""
    base = files.base_of(point)
    if base is None or claim.quantity not in ("speed_up", "efficiency"):
        return {}
    ratio = point.ranks if claim.quantity == "efficiency" else 1
    fewest = min((other.ranks for other in files.points if other.ranks > 1), default=1)
    parallel = files.base_of(point, fewest) or base
    of_parallel = median(parallel.times()) / median(point.times())
    return {
        "against a parallel run": of_parallel / (point.ranks / fewest if claim.quantity == "efficiency" else 1),
        "of the fastest repeats": min(base.times()) / min(point.times()) / ratio,
        "of mean times": fmean(base.times()) / fmean(point.times()) / ratio,
        "in per cent": 100 * median(base.times()) / median(point.times()) / ratio,
    }


def _intervals(files: Submitted) -> None:
    _required(files)
    for number, claim, _, right in _known_claims(files):
        if right.low is None or right.high is None:
            continue
        if claim.low is None or claim.high is None:
            raise problem("no interval", f"{CLAIMS}, claim {number}: low and high are missing")
        if not (_near(claim.low, right.low) and _near(claim.high, right.high)):
            text = f"{CLAIMS}, claim {number}: [{claim.low:g}, {claim.high:g}], the data have {right.format()}"
            raise problem("another interval", text)


def _required(files: Submitted) -> None:
    numbers = [ranks for ranks in ranks_of(files.variant) if ranks > 1]
    wanted = [("speed_up", ranks) for ranks in numbers]
    wanted += [("efficiency", numbers[-1]), ("serial_fraction", numbers[-1])]
    stated = {(claim.quantity, point.ranks) for _, claim, point, _ in _known_claims(files)}
    for quantity, ranks in wanted:
        if (quantity, ranks) not in stated:
            raise problem(f"no {quantity}", f"{CLAIMS}: no claim on the {quantity} on {ranks} ranks")


def _superlinear(files: Submitted) -> None:
    for number, claim, point, _ in _known_claims(files):
        if claim.quantity not in ("speed_up", "efficiency"):
            continue
        efficiency = files.measured("efficiency", point, files.base_of(point))
        lowest = efficiency.value if efficiency.low is None else efficiency.low
        if lowest > 1 + TOLERANCE and len(claim.because) < LEAST_EXPLANATION:
            text = f"{CLAIMS}, claim {number}: the efficiency is {efficiency.format('.3g')}, and nothing says why"
            raise problem("unexplained superlinear speed-up", text)


CLAIMS_CHECKS: dict[str, Check] = {
    "they can be read": _claims_can_be_read,
    "points in the data": _measured,
    "values within 2 %": _values,
    "intervals": _intervals,
    "required claims": _required,
    "superlinear speed-ups are explained": _superlinear,
}


def check_of(name: str) -> Check:
    """The check of a name, of any file."""
    found: dict[str, Any] = {**STUDY_CHECKS, **JOB_CHECKS, **RESULTS_CHECKS, **CLAIMS_CHECKS}
    check: Check = found[name]
    return check
