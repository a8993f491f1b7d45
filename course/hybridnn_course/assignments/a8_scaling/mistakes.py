"""Known wrong submissions of A8."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import partial

from hybridnn.study.report_files import write_csv
from hybridnn_course.assignment import Function, Mistake, Variant
from hybridnn_course.assignments.a8_scaling.checks import ranks_of
from hybridnn_course.assignments.a8_scaling.solution import (
    Texts,
    all_texts,
    claim_text,
    claimed,
    claims_text,
    job_text,
    results_text,
    study_text,
    submission_of,
)
from hybridnn_course.assignments.a8_scaling.submitted import RESULTS, STUDY, Submitted

Rows = list[dict[str, str]]


def _submitted(texts: Callable[[Variant], Texts]) -> Callable[[Variant], Function]:
    """A mistake by its texts."""
    return partial(submission_of, texts)


# -- study ------------------------------------------------------------------------------------------------------------


def _study(text: Callable[[Variant], str]) -> Callable[[Variant], Function]:
    """Only the study file matters to its task."""
    return _submitted(lambda variant: {**all_texts(variant), STUDY: text(variant)})


STUDY_MISTAKES = (
    Mistake(
        "baseline-is-parallel",
        _study(lambda variant: study_text(variant, top=f"baseline = {{ranks = {ranks_of(variant)[1]}}}")),
        "The speed-ups are against a parallel run, which has paid for communication already. What does a user have who "
        "does not parallelize at all?",
    ),
    Mistake(
        "local-batch-fixed",
        _study(lambda variant: study_text(variant, axes="batch_per_rank = [64]")),
        "The minibatch grows with the ranks: that is weak scaling, and another training on every number of ranks. What "
        "stays the same in strong scaling?",
    ),
    Mistake(
        "one-repeat",
        _study(lambda variant: study_text(variant, repeats=1)),
        "Every cell runs once. How would you tell a slow layout from a disturbed run?",
    ),
    Mistake(
        "stops-too-early",
        _study(lambda variant: study_text(variant, ranks=ranks_of(variant)[:-1])),
        "The largest number of ranks is missing. Where does a scaling study become interesting?",
    ),
)


# -- job --------------------------------------------------------------------------------------------------------------


def _job(text: str) -> Callable[[Variant], Function]:
    return _submitted(lambda variant: all_texts(variant, job=text))


JOB_MISTAKES = (
    Mistake(
        "threads-times-ranks",
        _job(job_text({"cpus-per-task": "=8"})),
        "Ranks times threads are more than the cores of a node. Who waits while two threads share a core?",
    ),
    Mistake(
        "idle-cores",
        _job(job_text({"nodes": "=8", "ntasks-per-node": "=4", "cpus-per-task": "=2"})),
        "A task gets more CPUs than the study gives threads to a rank. What does the rest of the CPUs do, and what "
        "does a speed-up per core then mean?",
    ),
    Mistake(
        "directive-after-command",
        _job(job_text({"exclusive": ""}) + "#SBATCH --exclusive\n"),
        "Slurm reads its directives up to the first command only. Which of them comes later?",
    ),
    Mistake(
        "no-time-limit",
        _job(job_text({"time": ""})),
        "There is no time limit. What does the scheduler then assume, and what does a hanging run cost?",
    ),
    Mistake(
        "too-few-tasks",
        _job(job_text({"nodes": "=1"})),
        "The job has fewer tasks than the largest cell has ranks. How many nodes does that cell need?",
    ),
    Mistake(
        "shared-nodes",
        _job(job_text({"exclusive": ""})),
        "Jobs of others may run on the same nodes. Whose times does the study then measure?",
    ),
    Mistake(
        "study-inside-srun",
        _job(job_text(command="srun hybridnn study run study.toml")),
        "srun starts the whole study on every task. Who should start the ranks of a cell?",
    ),
    Mistake(
        "trains-without-study",
        _job(job_text(command="srun hybridnn train settings.toml")),
        "The script trains, and does not run the study. Which command runs all cells and records them?",
    ),
)


# -- results ----------------------------------------------------------------------------------------------------------


def _data(change: Callable[[Rows, Variant], Rows]) -> Callable[[Variant], Function]:
    """A mistake in the data; the claims are those of the right data, which do not matter to the task."""

    def texts(variant: Variant) -> Texts:
        right = all_texts(variant)
        rows = list(csv.DictReader(io.StringIO(right[RESULTS])))
        return {**right, RESULTS: write_csv(change(rows, variant))}

    return _submitted(texts)


def _weak(rows: Rows, _: Variant) -> Rows:
    return [{**row, "batch_size": str(64 * int(row["ranks"]))} for row in rows]


def _two_machines(rows: Rows, _: Variant) -> Rows:
    other = {"cpu_model": "another processor", "launcher": "srun"}
    return [{**row, **other} if row["ranks"] == "1" else row for row in rows]


def _smoothed(rows: Rows, variant: Variant) -> Rows:
    """The times of the most ranks are made a little better."""
    most = str(ranks_of(variant)[-1])
    return [
        {**row, "seconds_per_epoch": str(0.9 * float(row["seconds_per_epoch"]))} if row["ranks"] == most else row
        for row in rows
    ]


def _copied(rows: Rows, _: Variant) -> Rows:
    first = {row["ranks"]: row["seconds_per_epoch"] for row in reversed(rows)}
    return [{**row, "seconds_per_epoch": first[row["ranks"]]} for row in rows]


RESULTS_MISTAKES = (
    Mistake(
        "slow-repeats-left-out",
        _data(lambda rows, _: sorted(rows, key=lambda row: float(row["seconds_per_epoch"]))[:-2]),
        "Rows of cells of the study are missing. May a repeat be left out because it was slow, or failed?",
    ),
    Mistake(
        "minibatch-grew",
        _data(_weak),
        "The minibatches of these runs grow with the ranks. Is that the study that you handed in, and its kind?",
    ),
    Mistake(
        "two-machines",
        _data(_two_machines),
        "The serial run is from another machine than the parallel ones. What does their ratio say about scaling?",
    ),
    Mistake(
        "smoothed-data",
        _data(_smoothed),
        "Some times are not those that were measured. Which rows did you change, and who could repeat that?",
    ),
    Mistake(
        "copied-repeats",
        _data(_copied),
        "The repeats of a cell are equal to the last digit. Did it run several times?",
    ),
)


# -- claims -----------------------------------------------------------------------------------------------------------


def _claims(text: Callable[[Submitted], str]) -> Callable[[Variant], Function]:
    def texts(variant: Variant) -> Texts:
        study = study_text(variant)
        files = Submitted({STUDY: study, RESULTS: results_text(study, variant["machine"])}, variant)
        return all_texts(variant, claims=text(files))

    return _submitted(texts)


def _superlinear(variant: Variant) -> Texts:
    study, some = study_text(variant), str(ranks_of(variant)[2])
    rows: Rows = list(csv.DictReader(io.StringIO(results_text(study, variant["machine"]))))
    for row in rows:
        if row["ranks"] == some:
            row["seconds_per_epoch"] = str(0.5 * float(row["seconds_per_epoch"]))
    results = write_csv(rows)
    return all_texts(variant, results=results, claims=claims_text(Submitted({STUDY: study, RESULTS: results}, variant)))


def _against_parallel(files: Submitted) -> str:
    first = ranks_of(files.variant)[1]
    (point,) = files.points_of({"ranks": first})
    factor = 1 / files.measured("speed_up", point, files.base_of(point)).value
    return _changed(files, {"speed_up": factor, "efficiency": factor * first})


def _changed(files: Submitted, factors: dict[str, float]) -> str:
    """Claims whose values and intervals are multiplied."""
    return "\n".join(
        claim_text(files, quantity, ranks, factor=factors.get(quantity, 1.0))
        for quantity, ranks in claimed(files.variant)
    )


def _rounded(files: Submitted) -> str:
    lines = claims_text(files).splitlines()
    return "\n".join(
        f"value = {round(float(line.partition('=')[2]))}" if line.startswith("value") else line for line in lines
    )


CLAIMS_MISTAKES = (
    Mistake(
        "claim-not-in-data",
        _claims(
            lambda files: (
                claims_text(files)
                + claims_text(files)
                .partition("\n\n")[0]
                .replace("ranks = 2", "ranks = 512")
                .replace("ranks = 3", "ranks = 512")
            )
        ),
        "A claim is about a number of ranks that was not measured. Which row of the data is it from?",
    ),
    Mistake(
        "no-error-bars",
        _claims(
            lambda files: "\n".join(
                claim_text(files, quantity, ranks, interval=False) for quantity, ranks in claimed(files.variant)
            )
        ),
        "The claims have no intervals. Would another five repeats give the same number, and how would a reader know?",
    ),
    Mistake(
        "superlinear-unexplained",
        _submitted(_superlinear),
        "More ranks are faster than their number allows, and nothing says why. What has a rank less of when there are "
        "more ranks, and did you measure it?",
    ),
    Mistake(
        "against-a-parallel-run",
        _claims(_against_parallel),
        "The stated speed-ups are against the smallest parallel run. Against what does the handout define a speed-up?",
    ),
    Mistake(
        "in-per-cent",
        _claims(lambda files: _changed(files, {"efficiency": 100.0})),
        "The efficiency is in per cent. What is it of a run that scales perfectly, by the handout's definition?",
    ),
    Mistake(
        "rounded-away",
        _claims(_rounded),
        "The values are rounded to whole numbers. By how many per cent does that change the smallest of them?",
    ),
    Mistake(
        "serial-fraction-left-out",
        _claims(lambda files: claims_text(files).partition('[[claims]]\nsays = "The serial')[0]),
        "There is no claim on the serial fraction. How do you tell a part that is not parallel from growing overhead?",
    ),
)
