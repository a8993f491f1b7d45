"""Trials of trainings: a run with a fault is resumed, perhaps with further faults, until it ends, and then checked."""

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fault_drill.damage import damage, restore_size, small_disk
from fault_drill.finished import Finished, Outcome, checkpoints, compare, read_finished
from fault_drill.injections import FAULTS, Injection, draw_injection
from fault_drill.launches import RECIPES, Launched, Recipe, launch, new_run
from mpi_runner.slowness import deadline

FOLLOWING = ("rank killed", "all killed", "killed in resume", "killed in checkpoint", "exception", "signal")
"""Faults of resumed runs."""

STALL_SECONDS = 2.5
SHARES = {1: 0.5, 2: 1.0, 4: 0.2}
"""Relative frequency of layouts by number of ranks, because many ranks start slowly on few cores."""


@dataclass(frozen=True)
class Trial:
    """A trial of a training, drawn from the seed and the number."""

    seed: int
    number: int
    fault: str  # name of the tested fault
    recipes: tuple[Recipe, ...]  # layouts of the first run and of each resumed run
    injections: tuple[Injection, ...]  # faults of all runs but the last
    options: tuple[str, ...]  # settings of checkpoints
    by_folder: tuple[bool, ...]  # for each resumed run, ``--resume FOLDER`` rather than ``auto``

    def __str__(self) -> str:
        return " -> ".join(recipe.name for recipe in self.recipes)

    @property
    def on_one_layout(self) -> bool:
        """Whether all runs have the same layout."""
        return len(set(self.recipes)) == 1


def draw_trial(seed: int, number: int, name: str, most_ranks: int = 4) -> Trial:
    """Draw a trial of a fault of `FAULTS`."""
    random = Random(f"{seed} {number}")
    allowed = [recipe for recipe in RECIPES if FAULTS[name].least_ranks <= recipe.ranks <= most_ranks]
    first = random.choices(allowed, [SHARES[recipe.ranks] for recipe in allowed])[0]
    names = [name]
    if name == "killed in resume":
        names = ["checkpoint damaged", name]
    elif name != "checkpoint damaged":
        names += random.sample(FOLLOWING, random.choices((0, 1, 2), (6, 3, 1))[0])
    others = [recipe for recipe in RECIPES if recipe.exact and recipe.ranks <= most_ranks]
    recipes = [first]
    for _ in names:
        moves = first.exact and random.random() < 0.3
        recipes.append(random.choice(others) if moves else recipes[-1])
    injections = [
        draw_injection(random, fault, recipe, resumed=index > 0)
        for index, (fault, recipe) in enumerate(zip(names, recipes, strict=False))
    ]
    settings = {
        "training.checkpoint_every": random.choice((5, 7, 11)),  # never at the last step
        "training.keep": random.choice((2, 3)),
    }
    options = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    by_folder = tuple(random.random() < 0.5 for _ in names)
    return Trial(seed, number, name, tuple(recipes), tuple(injections), tuple(options), by_folder)


class Drill:
    """Runs trials of trainings in subfolders of a folder, with a time limit of every run in seconds."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self._undisturbed: dict[str, Finished] = {}

    def undisturbed(self, recipe: Recipe) -> Finished:
        """Results of the training without faults."""
        if recipe.name not in self._undisturbed:
            folder = self.folder / "undisturbed" / recipe.name.replace(" ", "-")
            shutil.rmtree(folder, ignore_errors=True)
            done = launch(recipe, new_run(recipe, "run"), None, folder, "run", self.limit)
            if done.code != 0 or done.hung:
                raise RuntimeError(f"{recipe.name}: the undisturbed run failed: {done.hung or done.output}")
            self._undisturbed[recipe.name] = read_finished(folder / "run")
        return self._undisturbed[recipe.name]

    def carry_out(self, trial: Trial, folder: Path) -> Outcome:
        """Run the trial in an empty folder, and check its results."""
        outcome = Outcome()
        expected = self.undisturbed(trial.recipes[0])
        (folder / "disk").mkdir()
        with small_disk(folder / "disk") if trial.fault == "disk full" else contextlib.nullcontext():
            self._run_to_the_end(trial, folder, outcome)
            if outcome.ended:
                compare(folder / "disk" / "run", expected, outcome, same_bits=trial.on_one_layout)
            if outcome.complaints:
                shutil.copytree(folder / "disk", folder / "left", dirs_exist_ok=True)
        return outcome

    def _run_to_the_end(self, trial: Trial, folder: Path, outcome: Outcome) -> None:
        run = folder / "disk" / "run"
        random = Random(f"{trial.seed} {trial.number} damage")
        damaged_name: str | None = None
        for place, recipe in enumerate(trial.recipes):
            injection = trial.injections[place] if place < len(trial.injections) else None
            arguments = self._arguments(trial, place, run)
            done = launch(recipe, arguments, injection, folder, f"run-{place}", self.limit)
            if done.hung:
                outcome.complaints.append(f"run {place}: {done.hung}")
                outcome.hung, outcome.named = True, False
                return
            if damaged_name and injection is None and damaged_name not in done.output:
                outcome.complaints.append(f"run {place}: the output does not name the damaged {damaged_name}")
                outcome.named = False
            if injection is None or done.code == 0:
                outcome.ended = done.code == 0
                if done.code != 0:
                    outcome.complaints.append(f"run {place}: exit code {done.code} without a fault")
                elif injection is not None and injection.fault == "rank delayed":
                    outcome.injected |= done.seconds_after_fault is not None
                return
            self._judge(trial, done, injection, place, run, outcome)
            if injection.fault == "disk full":
                restore_size(folder / "disk")
            if trial.fault == injection.fault == "checkpoint damaged":
                damaged_name = damage(run, injection.damage, random)

    def _arguments(self, trial: Trial, place: int, run: Path) -> list[str]:
        recipe, name = trial.recipes[place], f"disk/{run.name}"
        stall = deadline(STALL_SECONDS if trial.fault == "rank stopped" else 25)
        options = [*trial.options, "--set", f"output.stall_seconds={stall}"]
        if place == 0:
            return [*new_run(recipe, name), *options]
        if trial.by_folder[place - 1] and checkpoints(run):
            # An interrupted run on another layout may not have written its settings.
            layout = [] if len(set(trial.recipes[: place + 1])) == 1 else recipe.layout
            return ["train", "--resume", name, "-q", *layout]
        return [*new_run(recipe, name), *options, "--resume", "auto"]

    def _judge(
        self, trial: Trial, done: Launched, injection: Injection, place: int, run: Path, outcome: Outcome
    ) -> None:
        """Check the report of a run about its fault, and the checkpoint that it names."""
        outcome.injected |= injection.fault == trial.fault
        outcome.end_seconds = max(outcome.end_seconds, done.seconds_after_fault or 0.0)
        complaint = injection.complaint(done.code, done.output, trial.recipes[place])
        if done.seconds_after_fault is None:
            complaint = f"ended with exit code {done.code} before: {injection}"
        if done.code == 75:
            match = re.search(r"after step (\d+); wrote (\S+);", done.output)
            if match is None or f"step-{int(match[1]):08d}" not in [path.name for path in checkpoints(run)][:1]:
                complaint = f"the checkpoint that the output names does not exist: {injection}"
        if complaint:
            outcome.complaints.append(f"run {place}: {complaint}")
            outcome.named = False
