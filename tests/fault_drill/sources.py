"""Folders for trials of damaged files: an interrupted run, a finished run with tables, and a stalled run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np

from fault_drill.finished import Finished, checkpoints, read_finished
from fault_drill.injections import Injection, draw_injection
from fault_drill.launches import Launched, launch
from fault_drill.recipes import RECIPES, Recipe, new_run
from mpi_runner.slowness import deadline

__all__ = ["COMMANDS", "NEWEST", "RUN", "TARGETS", "Sources"]

RUN = "run"
NEWEST = "NEWEST"
"""Placeholder of the name of the newest checkpoint."""

ALONE = next(recipe for recipe in RECIPES if not recipe.launched)
PAIR = next(recipe for recipe in RECIPES if recipe.ranks == 2)

COMMANDS: dict[str, tuple[str, ...]] = {
    "resume": ("train", "--resume", RUN, "-q"),
    "begin or resume": (*new_run(ALONE, RUN), "--set", "training.checkpoint_every=7", "--resume", "auto"),
    "report": ("report", RUN),
    "evaluate": ("evaluate", RUN),
    "evaluate newest": ("evaluate", RUN, "--checkpoint", NEWEST),
    "evaluate table": ("evaluate", RUN, "--data", "table.csv", "--targets", "t0,t1"),
    "evaluate arrays": ("evaluate", RUN, "--data", "table.npz"),
    "predict": ("predict", RUN, "inputs.csv", "--out", "predicted.csv", "--force"),
    "export": ("export", RUN, "exported.npz", "--force"),
    "trace": ("trace", RUN),
}
"""Arguments of ``hybridnn`` by name, for the folder that contains the run."""

TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    f"{RUN}/history.jsonl": ("interrupted", ("report", "resume")),
    f"{RUN}/config.toml": ("interrupted", ("report", "resume")),
    f"{RUN}/standardization.npz": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}/checkpoints": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}/checkpoints/{NEWEST}": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}/checkpoints/{NEWEST}/manifest.json": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}/checkpoints/{NEWEST}/SHA256SUMS": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}/checkpoints/{NEWEST}/*.npy": ("interrupted", ("evaluate newest", "resume")),
    f"{RUN}": ("interrupted", ("report", "evaluate", "trace", "resume")),
    f"{RUN}/weights.npz": ("finished", ("evaluate", "export", "predict")),
    f"{RUN}/standardization.npz of the end": ("finished", ("evaluate", "predict")),
    f"{RUN}/history.jsonl of the end": ("finished", ("report", "resume")),
    f"{RUN}/config.toml of the end": ("finished", ("evaluate", "report")),
    f"{RUN}/trace.json": ("finished", ("trace", "report")),
    f"{RUN}/stall/job.json": ("stalled", ("report",)),
    f"{RUN}/stall/rank-*.json": ("stalled", ("report",)),
    "table.csv": ("finished", ("evaluate table",)),
    "table.npz": ("finished", ("evaluate arrays",)),
    "inputs.csv": ("finished", ("predict",)),
}
"""By pattern of the damaged file, the folder, and the commands that read the file."""


class Sources:
    """Makes each subfolder of a folder when it is first needed, with a time limit of every run in seconds."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit

    def copy_of(self, name: str, place: Path) -> None:
        """Copy a folder, ``"interrupted"``, ``"finished"`` or ``"stalled"``."""
        shutil.copytree({"interrupted": self._interrupted, "finished": self._finished}.get(name, self._stalled), place)

    @cached_property
    def expected(self) -> Finished:
        """Expected results of the interrupted run."""
        self._finished  # noqa: B018 - makes it
        return read_finished(self.folder / "finished" / RUN)

    @cached_property
    def _finished(self) -> Path:
        folder = self._empty("finished")
        self._run(ALONE, [*new_run(ALONE, RUN), *self._options, "--set", "output.trace=true"], None, folder)
        random = np.random.default_rng(8)
        names = [f"x{column}" for column in range(16)]
        inputs, targets = random.standard_normal((30, 16)), random.standard_normal((30, 2))
        np.savez(folder / "table.npz", allow_pickle=False, x=inputs, y=targets)
        np.savetxt(folder / "inputs.csv", inputs, delimiter=",", header=",".join(names), comments="")
        both = np.hstack([inputs, targets])
        np.savetxt(folder / "table.csv", both, delimiter=",", header=",".join([*names, "t0", "t1"]), comments="")
        return folder

    @cached_property
    def _interrupted(self) -> Path:
        folder = self._empty("interrupted")
        injection = replace(draw_injection(Random(0), "checkpoint damaged", ALONE, resumed=False), call=4, delay=None)
        self._run(ALONE, [*new_run(ALONE, RUN), *self._options], injection, folder)
        if len(checkpoints(folder / RUN)) < 3:
            raise RuntimeError(f"{folder}: fewer than three checkpoints")
        return folder

    @cached_property
    def _stalled(self) -> Path:
        folder = self._empty("stalled")
        injection = replace(draw_injection(Random(0), "rank stopped", PAIR, resumed=False), moment="an update", call=3)
        self._run(PAIR, [*new_run(PAIR, RUN), "--set", f"output.stall_seconds={deadline(2.5)}"], injection, folder)
        if not (folder / RUN / "stall" / "job.json").exists():
            raise RuntimeError(f"{folder}: no diagnosis of a stall")
        return folder

    @property
    def _options(self) -> list[str]:
        return ["--set", "training.checkpoint_every=7"]

    def _empty(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _run(self, recipe: Recipe, arguments: list[str], injection: Injection | None, folder: Path) -> None:
        done = launch(recipe, arguments, injection, folder, "made", self.limit)
        if injection is None:
            _require_code(done, 0)
        elif done.seconds_after_fault is None or done.hung:
            raise RuntimeError(f"{folder}: the fault was not injected: {done.hung or done.output}")


def _require_code(done: Launched, code: int) -> None:
    if done.code != code or done.hung:
        raise RuntimeError(f"exit code {done.code} of an undisturbed run: {done.hung or done.output}")
