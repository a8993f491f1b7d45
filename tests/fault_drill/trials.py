"""A trial: a training is struck, resumed and perhaps struck again until it has ended, and then judged."""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fault_drill.damage import damage, make_room, small_disk
from fault_drill.finished import Finished, checkpoints, differences, read_finished
from fault_drill.launches import Launched, launch
from fault_drill.outcomes import Outcome
from fault_drill.recipes import RECIPES, Recipe, new_run
from fault_drill.strikes import FAULTS, Strike, draw_strike
from mpi_runner.slowness import deadline

__all__ = ["Drill", "Trial", "draw_trial"]

FOLLOWING = ("rank killed", "all killed", "killed in resume", "killed in checkpoint", "exception", "signal")
"""What may strike the resumed run again."""

STALL_SECONDS = 2.5
SHARES = {1: 0.5, 2: 1.0, 4: 0.2}
"""How often a layout of so many ranks is drawn: those of many ranks take long to start where there are few cores."""


@dataclass(frozen=True)
class Trial:
    """What is to happen, all of it drawn from the seed and the number.

    Attributes
    ----------
    seed, number : int
    fault : str
        The one that is tried.
    recipes : tuple of Recipe
        Of the first run, and of each that goes on with it.
    strikes : tuple of Strike
        One for each run but the last.
    options : tuple of str
        How checkpoints are written, and the stall watch.
    by_folder : tuple of bool
        For each run that goes on: ``--resume FOLDER`` rather than ``auto``.
    """

    seed: int
    number: int
    fault: str
    recipes: tuple[Recipe, ...]
    strikes: tuple[Strike, ...]
    options: tuple[str, ...]
    by_folder: tuple[bool, ...]

    def __str__(self) -> str:
        return " -> ".join(recipe.name for recipe in self.recipes)

    @property
    def on_one_layout(self) -> bool:
        """Whether the whole training runs on the same grid with the same method."""
        return len(set(self.recipes)) == 1


def draw_trial(seed: int, number: int, name: str, most_ranks: int = 4) -> Trial:
    """Draw a trial.

    Parameters
    ----------
    seed, number : int
    name : str
        One of `FAULTS`.
    most_ranks : int
    """
    random = Random(f"{seed} {number}")
    allowed = [one for one in RECIPES if FAULTS[name].least_ranks <= one.ranks <= most_ranks]
    first = random.choices(allowed, [SHARES[one.ranks] for one in allowed])[0]
    names = [name]
    if name == "killed in resume":
        names = ["checkpoint damaged", name]
    elif name != "checkpoint damaged":
        names += random.sample(FOLLOWING, random.choices((0, 1, 2), (6, 3, 1))[0])
    others = [one for one in RECIPES if one.exact and one.ranks <= most_ranks]
    recipes = [first]
    for _ in names:
        moves = first.exact and random.random() < 0.3
        recipes.append(random.choice(others) if moves else recipes[-1])
    strikes = [
        draw_strike(random, one, recipe, resumed=place > 0)
        for place, (one, recipe) in enumerate(zip(names, recipes, strict=False))
    ]
    given = {
        "training.checkpoint_every": random.choice((5, 7, 11)),  # never at the last step
        "training.checkpoint_async": random.choice(("true", "false")),
        "training.keep": random.choice((2, 3)),
        "output.stall_seconds": deadline(STALL_SECONDS if name == "rank stopped" else 25),
    }
    options = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    by_folder = tuple(random.random() < 0.5 for _ in names)
    return Trial(seed, number, name, tuple(recipes), tuple(strikes), tuple(options), by_folder)


class Drill:
    """Carries out trials.

    Parameters
    ----------
    folder : Path
        Where runs are made.
    limit : float
        Seconds a run may take.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self._undisturbed: dict[str, Finished] = {}

    def undisturbed(self, recipe: Recipe) -> Finished:
        """The same training, left in peace.

        Raises
        ------
        RuntimeError
            If it does not end well.
        """
        if recipe.name not in self._undisturbed:
            folder = self.folder / "undisturbed" / recipe.name.replace(" ", "-")
            shutil.rmtree(folder, ignore_errors=True)
            done = launch(recipe, new_run(recipe, "run"), None, folder, "run", self.limit)
            if done.code != 0 or done.hung:
                raise RuntimeError(f"{recipe.name}: the undisturbed run failed: {done.hung or done.said}")
            self._undisturbed[recipe.name] = read_finished(folder / "run")
        return self._undisturbed[recipe.name]

    def carry_out(self, trial: Trial, folder: Path) -> Outcome:
        """Do what the trial says in an empty folder, and judge it."""
        outcome = Outcome(trial)
        expected = self.undisturbed(trial.recipes[0])
        (folder / "disk").mkdir()
        with small_disk(folder / "disk") if trial.fault == "disk full" else contextlib.nullcontext():
            self._run_to_the_end(trial, folder, outcome)
            if outcome.ended:
                try:
                    found = read_finished(folder / "disk" / "run")
                except (OSError, ValueError) as error:
                    outcome.complaints.append(f"the run folder is not that of a finished run: {error}")
                else:
                    lost = differences(found, expected, same_bits=trial.on_one_layout)
                    outcome.lost = bool(lost)
                    outcome.resumed = found.resumed
                    outcome.complaints += lost
            if outcome.complaints:
                shutil.copytree(folder / "disk", folder / "left", dirs_exist_ok=True)
        return outcome

    def _run_to_the_end(self, trial: Trial, folder: Path, outcome: Outcome) -> None:
        run = folder / "disk" / "run"
        random = Random(f"{trial.seed} {trial.number} damage")
        must_say: str | None = None
        for place, recipe in enumerate(trial.recipes):
            strike = trial.strikes[place] if place < len(trial.strikes) else None
            arguments = self._arguments(trial, place, run)
            done = launch(recipe, arguments, strike, folder, f"run-{place}", self.limit)
            if done.hung:
                outcome.complaints.append(f"run {place}: {done.hung}")
                outcome.hung, outcome.named = True, False
                return
            if must_say and strike is None and must_say not in done.said:
                outcome.complaints.append(f"run {place}: no word of the damaged {must_say}")
                outcome.named = False
            if strike is None or done.code == 0:
                self._judge_the_last(done, strike, place, recipe, outcome)
                return
            self._judge(done, strike, place, recipe, run, outcome)
            if strike.fault == "disk full":
                make_room(folder / "disk")
            if trial.fault == strike.fault == "checkpoint damaged":
                must_say = damage(run, strike.damage, random)

    def _arguments(self, trial: Trial, place: int, run: Path) -> list[str]:
        recipe, name = trial.recipes[place], f"disk/{run.name}"
        if place == 0:
            return [*new_run(recipe, name), *trial.options]
        if trial.by_folder[place - 1] and checkpoints(run):
            # A run on another layout that was struck may not have come to write its settings.
            layout = [] if len(set(trial.recipes[: place + 1])) == 1 else recipe.layout
            return ["train", "--resume", name, "-q", *layout]
        return [*new_run(recipe, name), *trial.options, "--resume", "auto"]

    def _judge(self, done: Launched, strike: Strike, place: int, recipe: Recipe, run: Path, outcome: Outcome) -> None:
        """Whether a run that was struck told of it, and left what it says."""
        outcome.struck |= strike.fault == outcome.trial.fault
        outcome.end_seconds = max(outcome.end_seconds, done.struck_seconds or 0.0)
        complaint = strike.complaint(done.code, done.said, recipe)
        if done.struck_seconds is None:
            complaint = f"ended with exit code {done.code} before: {strike}"
        if done.code == 75:
            told = re.search(r"after step (\d+); wrote (\S+);", done.said)
            if told is None or f"step-{int(told[1]):08d}" not in [path.name for path in checkpoints(run)][:1]:
                complaint = f"the checkpoint it tells of is not there: {strike}"
        if complaint:
            outcome.complaints.append(f"run {place}: {complaint}")
            outcome.named = False

    def _judge_the_last(
        self, done: Launched, strike: Strike | None, place: int, recipe: Recipe, outcome: Outcome
    ) -> None:
        outcome.ended = done.code == 0
        if done.code != 0:
            outcome.complaints.append(f"run {place}: exit code {done.code} without a fault")
        elif strike is not None and strike.fault == "rank delayed":
            outcome.struck |= done.struck_seconds is not None
