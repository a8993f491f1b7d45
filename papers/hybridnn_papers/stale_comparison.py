"""The reference comparison of stale pipelines: rates chosen on validation samples, then fresh seeds.

``python -m hybridnn_papers.stale_comparison FOLDER`` runs what `stale_comparison.toml` describes; the same command
continues after an interruption, as finished trainings are not run again. ``--add FILE`` changes the description by
another one, so that a line ``pairs.mine = {method = "mine", optimizer = "sgd"}`` adds a method. ``--beside OTHER`` adds
the verdicts of a comparison in another folder, such as one with another kernel of the BLAS (``OPENBLAS_CORETYPE``):
what differs between them is undecided.

Written are ``records.csv``, a line for every training with fresh seeds, ``verdicts.csv`` and ``advice.txt``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from hybridnn.errors import SettingError
from hybridnn.pipeline.checks.simulated_schedule import Durations, schedule_bubble, simulate
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import find_method
from hybridnn.runs.records import RunHeader
from hybridnn.runs.run_files import RunRecord
from hybridnn.study.axes import merge
from hybridnn.study.judgement import Judgement, Sample, judge
from hybridnn.study.report import write_csv
from hybridnn.study.results import CellResult, host_values, read_results
from hybridnn.utils.files import read_toml

DESCRIPTION = Path(__file__).with_suffix(".toml")
EXACT = "1f1b"
MOST_ADDED = 3  # rates beyond each end of the first five
Table = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A pair of a method and an optimizer on so many stages at a learning rate; `base` is its exact pair."""

    pair: str
    depth: int
    rate: float
    base: str

    @property
    def name(self) -> str:
        """Name of its variant in a study."""
        return f"{self.pair}_{self.depth}_{self.rate:g}"


class Comparison:
    """A comparison in a folder, by its description."""

    def __init__(self, folder: Path, description: Table) -> None:
        self.folder, self._given = folder, description
        self._pairs: dict[str, Table] = {}
        for name, pair in description["pairs"].items():
            base = pair.get("base", pair["optimizer"])
            exact = {**pair, "method": EXACT, "optimizer": base}
            self._pairs.setdefault(f"{EXACT}-{base}", exact)
            self._pairs[name] = {**pair, "exact": f"{EXACT}-{base}"}

    # -- trainings ---------------------------------------------------------------------------------------------------

    def _training(self, pair: str, depth: int, rate: float) -> Training:
        return Training(pair, depth, rate, self._pairs[pair].get("exact", pair))

    def _first(self, task: str) -> list[Training]:
        """The first rates of every pair and depth; the training of an exact pair does not depend on the depth."""
        found, half = [], self._given["rates"] // 2
        for name, pair in self._pairs.items():
            middle = self._given["optimizers"][pair["optimizer"]]["lr"]
            depths = self._given["tasks"][task]["depths"]
            for depth in depths if "exact" in pair else depths[:1]:
                rates = [middle * self._given["factor"] ** power for power in range(-half, half + 1)]
                found += [self._training(name, depth, _short(rate)) for rate in rates]
        return found

    def _variant(self, training: Training) -> Table:
        """Settings of a training; where minibatches are cut, they have as many microbatches as there are stages."""
        pair = self._pairs[training.pair]
        optimizer = self._given["optimizers"][pair["optimizer"]] | {"lr": training.rate}
        parallel = {"pipeline": training.depth, "method": pair["method"]}
        if pair["method"] == EXACT or find_method(pair["method"]).cuts_minibatches:
            parallel["microbatches"] = training.depth
        return {"training": pair.get("training", {}), "optimizer": optimizer, "parallel": parallel}

    def _run(self, name: str, task: str, trainings: Iterable[Training], part: str) -> dict[Training, list[CellResult]]:
        """Run a study of some trainings unless it has run, and return the cells of each."""
        import tomli_w

        given = self._given
        epochs = max(given[part].get("budgets", ())) if part == "result" else given[part]["epochs"]
        base = deepcopy(given["settings"])
        data = {**given["tasks"][task]["data"], "validation_fraction": given[part].get("validation_fraction", 0.0)}
        merge(base, {"data": data, "training": {"epochs": epochs, "drain_every": epochs}})
        merge(base, {"training": given["tasks"][task].get("training", {})})
        by_name = {training.name: training for training in trainings}
        variants = {name: self._variant(training) for name, training in by_name.items()}
        axes = {"variants": list(variants), "seeds": given[part]["seeds"]}
        study = {"name": name, "in_process": True, "base": base, "variants": variants, "axes": axes}
        self.folder.mkdir(parents=True, exist_ok=True)
        file, out = self.folder / f"{name}.toml", self.folder / name
        file.write_text(tomli_w.dumps(study), encoding="utf-8")
        command = [sys.executable, "-m", "hybridnn", "study", "run", str(file), "--out", str(out)]
        if code := subprocess.run([*command, "--jobs", str(given["jobs"])], check=False).returncode:
            raise SystemExit(code)
        found: dict[Training, list[CellResult]] = {training: [] for training in by_name.values()}
        for cell in read_results(out).cells:
            found[by_name[cell.values["variant"]]].append(cell)
        return found

    # -- choice of rates ---------------------------------------------------------------------------------------------

    def chosen(self, task: str) -> dict[tuple[str, int], dict[str, float]]:
        """By pair and depth, the rate of the best validation metric and that of the fewest epochs to the target."""
        trainings, target = self._first(task), self._given["tasks"][task]["target"]
        scores: dict[tuple[str, int], dict[float, tuple[float, float]]] = {}  # by rate: metric, -epochs to the target
        for number in range(1 + MOST_ADDED):
            for training, cells in self._run(f"{task}-rates-{number}", task, trainings, "choice").items():
                metric = fmean(metric_at(cell.run, self._given["choice"]["epochs"]) for cell in cells)
                epochs = fmean(epochs_to(cell.run, target) for cell in cells)
                scores.setdefault((training.pair, training.depth), {})[training.rate] = metric, -epochs
            trainings = [
                self._training(pair, depth, rate)
                for (pair, depth), found in scores.items()
                for rate in rates_beyond(found, self._given["factor"])
            ]
            if not trainings:
                break
        return {key: dict(zip(("metric", "target"), best_rates(found), strict=True)) for key, found in scores.items()}

    # -- results -----------------------------------------------------------------------------------------------------

    def rows(self, task: str) -> Iterator[Row]:
        """A row for every training with fresh seeds; an exact pair has one for every depth, of the same training."""
        target, depths = self._given["tasks"][task]["target"], self._given["tasks"][task]["depths"]
        purposes: dict[Training, list[str]] = {}
        for (pair, depth), rates in self.chosen(task).items():
            for purpose, rate in rates.items():
                purposes.setdefault(self._training(pair, depth, rate), []).append(purpose)
        exact = {training.pair: training.rate for training in purposes if training.pair == training.base}
        others = [self._training(pair, depth, rate) for pair, rate in exact.items() for depth in depths[1:]]
        headers = {
            (training.pair, training.depth): cells[0].run.header
            for training, cells in (self._run(f"{task}-layouts", task, others, "layouts") if others else {}).items()
        }
        for training, cells in self._run(f"{task}-result", task, purposes, "result").items():
            for depth, cell in product(depths if training.pair in exact else [training.depth], cells):
                header = headers.get((training.pair, depth), cell.run.header)
                yield {
                    **{"task": task, "pair": training.pair, "depth": depth, "base": training.base},
                    **{"rate": training.rate, "chosen_for": " ".join(purposes[training]), "seed": cell.values["seed"]},
                    **self._measured(cell.run, header, target),
                    "blas": ", ".join(host_values(cell.run.header, "blas")),
                }

    def _measured(self, run: RunRecord, header: RunHeader, target: float) -> Row:
        """Metrics and losses at the budgets, the way to the target, and what the layout of `header` costs."""
        budgets, epochs, steps = self._given["result"]["budgets"], epochs_to(run, target), run.steps_per_epoch
        idle = schedule_bubble(header.layout, steps * max(budgets))
        return {
            **{f"metric_{budget}": metric_at(run, budget) for budget in budgets},
            **{f"loss_{budget}": loss_at(run, budget) for budget in budgets},
            **{"epochs_to_target": epochs, "slots_to_target": epochs * steps * work(header.layout) / (1 - idle)},
            **{"delay": header.mean_staleness, "microbatches": header.layout.microbatches, "idle": idle},
            "memory": max(stage.total for stage in header.memory),
        }

    def verdicts(self, rows: Sequence[Row]) -> list[Row]:
        """Every pair against the exact one of its optimizer and depth: the metric, and the slots to the target."""
        measures = [(f"metric_{budget}", "metric") for budget in self._given["result"]["budgets"]]
        measures.append(("slots_to_target", "target"))
        points = list(dict.fromkeys((row["task"], row["depth"], row["pair"], row["base"]) for row in rows))
        compared = [point for point in points if point[2] != point[3]]
        found, comparisons = [], len(compared) * len(measures)
        for task, depth, pair, base in compared:
            for measure, purpose in measures:
                samples = [_sample(rows, (task, depth, name), measure, purpose) for name in (pair, base)]
                judgement = self._judged(*samples, is_metric=purpose == "metric", comparisons=comparisons)
                about = {"task": task, "depth": depth, "pair": pair, "base": base, "measure": measure}
                means = {"mean": samples[0].mean, "base_mean": samples[1].mean, "against_base": judgement.text}
                found.append({**about, **means, "verdict": judgement.conclusion, "reason": judgement.reservation})
        return found

    def _judged(self, side: Sample, base: Sample, *, is_metric: bool, comparisons: int) -> Judgement:
        lost = [value for value in (*side.values.values(), *base.values.values()) if not isfinite(value)]
        doubt = f"{len(lost)} of {len(side.values) + len(base.values)} runs {'diverged' if is_metric else 'missed it'}"
        how: Table = {"comparisons": comparisons, "reservation": doubt * bool(lost)}
        if is_metric:
            return judge(side, base, "difference", margin=self._given["margin"], **how)
        return judge(side, base, "ratio", **how)


def _sample(rows: Iterable[Row], point: tuple[str, int, str], measure: str, purpose: str) -> Sample:
    of_point = [row for row in rows if (row["task"], row["depth"], row["pair"]) == point]
    chosen = {str(row["seed"]): row[measure] for row in of_point if purpose in row["chosen_for"].split()}
    return Sample(chosen, "training")


def best_rates(scores: Mapping[float, tuple[float, float]]) -> tuple[float, float]:
    """The rate of the highest first score, and that of the highest second one."""
    return max(scores, key=lambda rate: scores[rate]), max(scores, key=lambda rate: scores[rate][::-1])


def rates_beyond(scores: Mapping[float, tuple[float, float]], factor: float) -> list[float]:
    """The next rates beyond the ends, if a best one is there; none where both are inside."""
    low, high, best = min(scores), max(scores), best_rates(scores)
    return [_short(low / factor)] * (low in best) + [_short(high * factor)] * (high in best)


def _short(rate: float) -> float:
    """A rate as its name in a study has it."""
    return float(f"{rate:g}")


def metric_at(run: RunRecord, epochs: int) -> float:
    """Metric after so many epochs; the worst one if the run diverged."""
    return next(
        (moment.metric for moment in run.moments if moment.epochs == epochs and moment.metric is not None), -inf
    )


def loss_at(run: RunRecord, epochs: int) -> float:
    """Loss of the evaluation after so many epochs; infinite if the run diverged."""
    return next((moment.loss for moment in run.moments if moment.epochs == epochs and moment.loss is not None), inf)


def epochs_to(run: RunRecord, target: float) -> float:
    """Epochs until the metric is at least the target; infinite if it never is, or the run diverged."""
    reached = (it.epochs for it in run.moments if it.metric is not None and it.metric >= target)
    return inf if run.diverged is not None else next(reached, inf)


def work(layout: Layout) -> float:
    """Slots in which a stage computes for a minibatch: 1 for its forward pass, 2 for its backward pass."""
    return sum(simulate(layout.schedule(1), Durations()).busy) / (len(layout.stages) * layout.microbatches)


def together(verdicts: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """The verdicts of two comparisons: undecided where they differ, or where one of them has none."""
    keys = ("task", "depth", "pair", "measure")
    known = {tuple(str(row[key]) for key in keys): row["verdict"] for row in others}
    found = []
    for row in verdicts:
        other = known.get(tuple(str(row[key]) for key in keys), "nothing")
        differs = {"verdict": "undecided", "reason": f"{row['verdict']} here, {other} beside"}
        found.append(row if other == row["verdict"] else row | differs)
    return found


def advice(verdicts: Iterable[Row], margin: float) -> Iterator[str]:
    """A line for every verdict on a pair."""
    said = {"lower": "costs", "higher": "gains", "equal": f"is within {margin:g}", "undecided": "undecided"}
    for row in verdicts:
        text = said[row["verdict"]] if row["measure"].startswith("metric") else row["verdict"]
        reason = f" ({row['reason']})" * bool(row["reason"])
        found = f"{row['pair']} {text} against {row['base']}, {row['against_base']}{reason}"
        yield f"{row['task']}, {row['depth']} stages, {row['measure']}: {found}"


def main(arguments: Sequence[str]) -> int:
    """Run or continue the comparison in a folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hybridnn_papers.stale_comparison", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--add", type=Path, metavar="FILE", help="changes of the description, such as another pair")
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="a comparison with which the verdicts must agree")
    given, description = parser.parse_args(arguments), read_toml(DESCRIPTION)
    if given.add is not None:
        merge(description, read_toml(given.add))
    try:
        comparison = Comparison(given.folder, description)
        rows = [row for task in description["tasks"] for row in comparison.rows(task)]
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    verdicts = comparison.verdicts(rows)
    if given.beside is not None:
        verdicts = together(verdicts, _read_csv(given.beside / "verdicts.csv"))
    for name, found in (("records", rows), ("verdicts", verdicts)):
        (given.folder / f"{name}.csv").write_text(write_csv(found), encoding="utf-8")
    (given.folder / "advice.txt").write_text("\n".join(advice(verdicts, description["margin"])) + "\n", "utf-8")
    return 0


def _read_csv(path: Path) -> list[Row]:
    import csv

    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
