"""Trials of damaged files: commands on a folder with one damaged file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fault_drill.finished import Finished, checkpoints, differences, read_finished
from fault_drill.forgeries import FIELDS, make_device
from fault_drill.launches import run_job
from fault_drill.outcomes import Outcome
from fault_drill.sources import COMMANDS, NEWEST, RUN, TARGETS, Sources
from reference.damaged_files import CONTENT, CUTS, Damage, replace

__all__ = ["CUT", "FILE_FAULTS", "FORGE", "FolderDrill", "FolderTrial", "draw_folder_trial"]

RUN_FILES = tuple(target for target in TARGETS if target.startswith(f"{RUN}/") and Path(target).suffix)
WRITTEN = RUN_FILES
TEXTS = tuple(target for target in WRITTEN if re.search(r"\.(jsonl?|toml)\b", target))
ARRAYS = tuple(target for target in TARGETS if re.search(r"\.np[yz]\b", target))
MANIFEST = f"{RUN}/checkpoints/{NEWEST}/manifest.json"
SUMS = f"{RUN}/checkpoints/{NEWEST}/SHA256SUMS"


def _replacement(name: str) -> Damage:
    return lambda path, random: replace(path, name)


def _device(path: Path, random: Random) -> None:
    replace(path, "nothing")
    make_device(path)


def _other_kind(path: Path, random: Random) -> None:
    """Replace a folder by a file, or a file by a folder."""
    folder = path.is_dir()
    replace(path, "nothing" if folder else "a folder")
    if folder:
        path.write_text("a file\n")


PLACES_TAKEN: dict[str, Damage] = {
    **{name: _replacement(name) for name in ("a FIFO", "a link to an endless file", "a link to itself")},
    "a device": _device,
    "a folder, or a file for a folder": _other_kind,
}
"""Replacements of a file or folder, by name."""

CUT: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "cut anywhere": (CUTS["anywhere"], (*WRITTEN, SUMS)),
    "cut in its last line": (CUTS["in its last line"], (f"{RUN}/history.jsonl", f"{RUN}/history.jsonl of the end")),
    "cut after a line": (CUTS["after a line"], (*TEXTS, SUMS)),
    "cut to nothing": (CUTS["to nothing"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
}
FORGE: dict[str, tuple[Damage, tuple[str, ...]]] = {
    **{name: (how, tuple(TARGETS)) for name, how in PLACES_TAKEN.items()},
    # Changed settings, or values in a table or a record, cannot be detected.
    "a bit flipped": (CONTENT["a bit flipped"], (*sorted({*ARRAYS} - {"table.npz"}), MANIFEST, SUMS)),
    "random bytes": (CONTENT["random bytes"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
    "zeros": (CONTENT["zeros"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
    "nested deep": (CONTENT["nested deep"], TEXTS),
    "an integer of 5,000 digits": (CONTENT["an integer of 5,000 digits"], TEXTS),
    "a NUL": (CONTENT["a NUL"], (*TEXTS, SUMS, "table.csv", "inputs.csv")),
    "empty arrays": (CONTENT["empty arrays"], ARRAYS),
    "arrays of 8 TB": (CONTENT["arrays of 8 TB"], ARRAYS),
    **{name: (how, (MANIFEST,)) for name, how in FIELDS.items()},
}
FILE_FAULTS = CUT | FORGE
"""By name, the function that damages a file, and the `TARGETS` to which it applies."""

WELL, USER_MISTAKE = 0, 2
NOT_ENDED = f"{RUN}: the run did not end well"
"""Message of `report` about an interrupted run, and about one whose history has lost its last line."""

OTHER_TRAINING = ("the checkpoint is of", "the run to resume has")
"""Messages about truncated settings of another training."""


@dataclass(frozen=True)
class FolderTrial:
    """A trial of a damaged file, drawn from the seed and the number."""

    seed: int
    number: int
    fault: str  # key of `FILE_FAULTS`
    target: str  # key of `TARGETS`

    def __str__(self) -> str:
        return self.target

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the commands that run on the damaged folder."""
        return TARGETS[self.target][1]


def draw_folder_trial(seed: int, number: int, fault: str) -> FolderTrial:
    """Draw the damaged file."""
    return FolderTrial(seed, number, fault, Random(f"{seed} {number}").choice(FILE_FAULTS[fault][1]))


@dataclass(frozen=True)
class _Damaged:
    """The damaged file of a trial, and the folders of the trial."""

    trial: FolderTrial
    folder: Path  # of the trial
    path: Path  # damaged
    newest: str  # name of the newest checkpoint

    @property
    def work(self) -> Path:
        """Folder of the commands."""
        return self.folder / "work"

    @property
    def intact(self) -> Path:
        """Copy of the file before it was damaged."""
        return self.folder / "intact"


class FolderDrill:
    """Runs trials of damaged files.

    Parameters
    ----------
    folder : Path
        Folder of all trials.
    limit : float
        Time limit of all commands of a trial, in seconds.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.limit = limit
        self.sources = Sources(folder / "undisturbed", limit)

    def carry_out(self, trial: FolderTrial, folder: Path) -> Outcome:
        """Run the trial in an empty folder, and check its results."""
        work = folder / "work"
        self.sources.copy_of(TARGETS[trial.target][0], work)
        newest = checkpoints(work / RUN)[0].name if checkpoints(work / RUN) else ""
        damaged = _Damaged(trial, folder, _path_of(trial, work), newest)
        _copy(damaged.path, damaged.intact)
        FILE_FAULTS[trial.fault][0](damaged.path, Random(f"{trial.seed} {trial.number} damage"))
        outcome = Outcome(trial, injected=True, ended=True, lost=False)
        ends = self._call(trial.commands, damaged, "damaged", outcome)
        for name, (code, output) in ends.items():
            _judge_command(name, code, output, _names(damaged.path, work, newest), outcome)
        if "resume" in ends and not outcome.hung:
            self._judge_resumed(*ends["resume"], damaged, outcome)
        return outcome

    def _call(
        self, commands: tuple[str, ...], damaged: _Damaged, name: str, outcome: Outcome
    ) -> dict[str, tuple[int, str]]:
        """Exit code and output of each command."""
        out = damaged.folder / name
        out.mkdir()
        lines = [[argument.replace(NEWEST, damaged.newest) for argument in COMMANDS[name]] for name in commands]
        arguments = [sys.executable, "-m", "fault_drill.commands", str(out), json.dumps(lines)]
        done = run_job(lambda markers: arguments, damaged.work, f"{name}-commands", self.limit, f"{outcome.trial}")
        outcome.end_seconds = max(outcome.end_seconds, done.seconds)
        ends = {}
        for number, command in enumerate(commands):
            code = out / f"command-{number}.code"
            if not code.exists():
                outcome.hung |= done.hung is not None
                outcome.named = outcome.ended = False
                outcome.complaints.append(f"{command}: {done.hung or f'it did not run: {done.output}'}")
                break
            ends[command] = int(code.read_text()), (out / f"command-{number}.txt").read_text(errors="replace")
        return ends

    def _judge_resumed(self, code: int, output: str, damaged: _Damaged, outcome: Outcome) -> None:
        """Check that the run was completed, if necessary after the intact file has been restored."""
        target, run = damaged.trial.target, damaged.work / RUN
        finished = TARGETS[target][0] == "finished"
        if code != 0:
            if NEWEST in target:
                outcome.lost = True
                outcome.complaints.append("resume: the older checkpoints were not used")
                return
            replace(damaged.path, "nothing")
            _copy(damaged.intact, damaged.path)
            ends = self._call(("resume",), damaged, "restored", outcome)
            if not ends:
                return
            code, output = ends["resume"]
            if code != 0:
                outcome.lost = True
                outcome.complaints.append(f"resume: exit code {code} when the file was intact again: {_end_of(output)}")
                return
        elif finished:  # the run had ended before
            return
        try:
            found = read_finished(run)
        except (OSError, ValueError) as error:
            outcome.lost = True
            outcome.complaints.append(f"resume: not the folder of a finished run: {error}")
            return
        expected = self.sources.expected
        if "history" in target or finished:  # truncated records are lost
            found, expected = Finished(found.weights, []), Finished(expected.weights, [])
        wrong = differences(found, expected, same_bits=True)
        outcome.lost, outcome.resumed = bool(wrong), found.resumed
        outcome.complaints += wrong
        names = _names(damaged.path, damaged.work, damaged.newest)
        if NEWEST in target and damaged.newest not in _resumed_from(run) and not _line_with(output, names):
            outcome.named = False
            outcome.complaints.append(f"resume: the output does not name the damaged {damaged.path}")


def _path_of(trial: FolderTrial, work: Path) -> Path:
    """The file that is damaged."""
    pattern = trial.target.removesuffix(" of the end")
    found = checkpoints(work / RUN)
    matches = sorted(work.glob(pattern.replace(NEWEST, found[0].name if found else NEWEST)))
    return Random(f"{trial.seed} {trial.number} file").choice(matches)


def _copy(path: Path, copy: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copy2(path, copy)


def _names(path: Path, work: Path, newest: str) -> tuple[str, ...]:
    """Texts of which a line must contain one, to name a damaged file or, for manifests and digests, its folder."""
    if newest and newest in path.parts:
        of_folder = path.name in ("SHA256SUMS", "manifest.json", newest)
        return (newest,) if of_folder else (f"{newest}/{path.name}",)
    if path.name == RUN:
        return (RUN,)
    others = OTHER_TRAINING if path.name == "config.toml" else ()
    return (str(path.relative_to(work)), path.name, NOT_ENDED, *others)


def _line_with(output: str, names: tuple[str, ...]) -> bool:
    text = re.sub(r"\s*\n\s*", "", output)  # long lines are wrapped
    return any(name in text for name in names)


def _judge_command(name: str, code: int, output: str, names: tuple[str, ...], outcome: Outcome) -> None:
    if "Traceback (most recent call last)" in output:
        outcome.traceback = True
        outcome.complaints.append(f"{name}: a traceback: {_end_of(output)}")
    elif code not in (WELL, USER_MISTAKE):
        outcome.named = False
        outcome.complaints.append(f"{name}: exit code {code}: {_end_of(output)}")
    elif code == USER_MISTAKE and not _line_with(output, names):
        outcome.named = False
        outcome.complaints.append(f"{name}: the output does not name {names[0]}: {_end_of(output)}")
    elif code == USER_MISTAKE and len([line for line in output.splitlines() if line.startswith("Error")]) != 1:
        outcome.named = False
        outcome.complaints.append(f"{name}: not one line of error: {_end_of(output)}")


def _end_of(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing printed"


def _resumed_from(run: Path) -> Iterator[str]:
    for line in (run / "history.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "resumed":
            yield f"step-{record['step']:08d}"
