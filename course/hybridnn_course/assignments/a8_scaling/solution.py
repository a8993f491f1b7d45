"""Reference submissions of A8: the texts of all files, with data of the simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from hybridnn.study.report_files import write_csv
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.assignments.a8_scaling.checks import hidden_of, minibatch_of, ranks_of
from hybridnn_course.assignments.a8_scaling.machines import CORES, NODES, simulated_rows
from hybridnn_course.assignments.a8_scaling.submitted import CLAIMS, JOB, REPORT, RESULTS, STUDY, Submitted

STUDENT = "reference"
Texts = dict[str, str]


def study_text(variant: Variant, *, ranks: Sequence[int] = (), axes: str = "", top: str = "", repeats: int = 5) -> str:
    """A study file; `axes` and `top` are further lines."""
    return f"""\
name = "scaling"
description = "Strong scaling of batch parallelism"
threads = 1
{top}
base.model.hidden = {list(hidden_of(variant))}
base.training = {{epochs = 5, batch_size = {minibatch_of(variant)}}}

[axes]
ranks = {list(ranks or ranks_of(variant))}
layouts = ["batch"]
repeats = {repeats}
{axes}
"""


def job_text(directives: Mapping[str, str] | None = None, command: str = "hybridnn study run study.toml") -> str:
    """A batch script with changed directives; an empty value leaves one out."""
    options = {
        "job-name": "=scaling",
        "nodes": f"={NODES}",
        "ntasks-per-node": f"={CORES}",
        "cpus-per-task": "=1",
        "exclusive": " ",
        "time": "=02:00:00",
    }
    options |= directives or {}
    lines = [f"#SBATCH --{name}{value}".rstrip() for name, value in options.items() if value]
    return "\n".join(["#!/usr/bin/env bash", *lines, "", "set -euo pipefail", "export OMP_NUM_THREADS=1", command, ""])


@lru_cache(maxsize=64)
def results_text(study: str, machine: str, student: str = STUDENT) -> str:
    """The data of a study on a simulated machine."""
    cells = Submitted({STUDY: study}, {}).cells
    return write_csv(simulated_rows(cells, machine, student))


def claim_text(
    files: Submitted, quantity: str, ranks: int, *, interval: bool = True, factor: float = 1.0, because: str = ""
) -> str:
    """A claim with what the data say."""
    (point,) = files.points_of({"ranks": ranks})
    found = files.measured(quantity, point, files.base_of(point))
    lines = [
        "[[claims]]",
        f'says = "The {quantity.replace("_", " ")} on {ranks} ranks."',
        f'quantity = "{quantity}"',
        f"where = {{ranks = {ranks}}}",
        f"value = {found.value * factor:.4g}",
    ]
    if interval and found.low is not None and found.high is not None:
        lines += [f"low = {found.low * factor:.4g}", f"high = {found.high * factor:.4g}"]
    if because:
        lines.append(f'because = "{because}"')
    return "\n".join(lines) + "\n"


def claimed(variant: Variant) -> list[tuple[str, int]]:
    """The required claims."""
    numbers = [ranks for ranks in ranks_of(variant) if ranks > 1]
    return [*(("speed_up", ranks) for ranks in numbers), ("efficiency", numbers[-1]), ("serial_fraction", numbers[-1])]


def claims_text(files: Submitted) -> str:
    """The required claims, as the data have them."""
    return "\n".join(claim_text(files, quantity, ranks) for quantity, ranks in claimed(files.variant))


def all_texts(variant: Variant, **changed: str) -> Texts:
    """The texts of a submission; `changed` ones by the name of the file without its ending."""
    study = changed.get("study", study_text(variant))
    results = changed.get("results") or results_text(study, variant["machine"])
    files = Submitted({STUDY: study, RESULTS: results}, variant)
    claims = changed["claims"] if "claims" in changed else claims_text(files)
    report = "# Strong scaling\n\nThis text is graded by a person.\n"
    return {STUDY: study, JOB: changed.get("job") or job_text(), RESULTS: results, CLAIMS: claims, REPORT: report}


def submission_of(texts: Callable[[Variant], Texts], variant: Variant) -> Function:
    """A function that returns the texts, which are made once."""

    def submission() -> Texts:
        return dict(_made(texts, tuple(variant.items())))

    return submission


@lru_cache(maxsize=256)
def _made(texts: Callable[[Variant], Texts], variant: tuple[tuple[str, str], ...]) -> Texts:
    return texts(dict(variant))


def submission_solution(variant: Variant) -> Function:
    """The reference submission of a variant."""
    return submission_of(all_texts, variant)


def submission() -> Texts:
    """The texts of all files of a submission, by name."""
    return all_texts({"machine": "slow", "network": "two wide layers", "minibatch": "256", "ranks": "powers of two"})
