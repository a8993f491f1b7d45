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
from fault_drill.forgeries import CUTS, FIELDS, FORGERIES, PLACES_TAKEN, Damage
from fault_drill.launches import run_job
from fault_drill.outcomes import Outcome
from fault_drill.sources import COMMANDS, NEWEST, RUN, TARGETS, Sources

__all__ = ["CUT", "FILE_FAULTS", "FORGE", "FolderDrill", "FolderTrial", "draw_folder_trial"]

RUN_FILES = tuple(target for target in TARGETS if target.startswith(f"{RUN}/") and Path(target).suffix)
WRITTEN = (*RUN_FILES, "profile.json")
TEXTS = tuple(target for target in WRITTEN if re.search(r"\.(jsonl?|toml)\b", target))
ARRAYS = tuple(target for target in TARGETS if re.search(r"\.np[yz]\b", target))
IN_CHECKPOINTS = tuple(target for target in TARGETS if NEWEST in target and Path(target).suffix != "")
CONFIGS = tuple(target for target in TARGETS if "config" in target)
MANIFEST = f"{RUN}/checkpoints/{NEWEST}/manifest.json"
SUMS = f"{RUN}/checkpoints/{NEWEST}/SHA256SUMS"


def _but(targets: tuple[str, ...], *left_out: str) -> tuple[str, ...]:
    return tuple(target for target in targets if target not in left_out)


CUT: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "cut anywhere": (CUTS["anywhere"], (*WRITTEN, SUMS)),
    "cut in its last line": (CUTS["in its last line"], (f"{RUN}/history.jsonl", f"{RUN}/history.jsonl of the end")),
    "cut after a line": (CUTS["after a line"], (*TEXTS, SUMS)),
    "cut to nothing": (CUTS["to nothing"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
}
FORGE: dict[str, tuple[Damage, tuple[str, ...]]] = {
    **{name: (how, tuple(TARGETS)) for name, how in PLACES_TAKEN.items()},
    # Changed settings, or values in a table or a record, cannot be detected.
    "a bit flipped": (FORGERIES["a bit flipped"], (*_but(ARRAYS, "table.npz"), MANIFEST, SUMS)),
    "random bytes": (FORGERIES["random bytes"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
    "zeros": (FORGERIES["zeros"], (*WRITTEN, SUMS, "table.csv", "table.npz", "inputs.csv")),
    "nested deep": (FORGERIES["nested deep"], TEXTS),
    "an integer of 5,000 digits": (FORGERIES["an integer of 5,000 digits"], TEXTS),
    "a NUL": (FORGERIES["a NUL"], (*TEXTS, SUMS, "table.csv", "inputs.csv")),
    "empty arrays": (FORGERIES["empty arrays"], ARRAYS),
    "arrays of 8 TB": (FORGERIES["arrays of 8 TB"], ARRAYS),
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
    """A trial of a damaged file, drawn from the seed and the number.

    Attributes
    ----------
    seed, number : int
    fault : str
        Key of `FILE_FAULTS`.
    target : str
        Key of `TARGETS`.
    """

    seed: int
    number: int
    fault: str
    target: str

    def __str__(self) -> str:
        return self.target

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the commands that run on the damaged folder."""
        return TARGETS[self.target][1]


def draw_folder_trial(seed: int, number: int, fault: str) -> FolderTrial:
    """Draw the damaged file."""
    return FolderTrial(seed, number, fault, Random(f"{seed} {number}").choice(FILE_FAULTS[fault][1]))


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
        path = _path_of(trial, work)
        intact = folder / "intact"
        _copy(path, intact)
        newest = checkpoints(work / RUN)[0].name if checkpoints(work / RUN) else ""
        FILE_FAULTS[trial.fault][0](path, Random(f"{trial.seed} {trial.number} damage"))
        outcome = Outcome(trial, injected=True, ended=True, lost=False)
        ends = self._call(trial.commands, newest, work, folder, "damaged", outcome)
        names = _names(path, work, newest)
        resumed = None
        for name, (code, output) in ends.items():
            _judge_command(name, code, output, names, outcome)
            if name == "resume":
                resumed = code, output
        if resumed is not None and not outcome.hung:
            self._judge_resumed(*resumed, trial, work, path, intact, newest, folder, outcome)
        return outcome

    def _call(
        self, commands: tuple[str, ...], newest: str, work: Path, folder: Path, name: str, outcome: Outcome
    ) -> dict[str, tuple[int, str]]:
        """Exit code and output of each command."""
        out = folder / name
        out.mkdir()
        lines = [[argument.replace(NEWEST, newest) for argument in COMMANDS[name]] for name in commands]
        arguments = [sys.executable, "-m", "fault_drill.commands", str(out), json.dumps(lines)]
        done = run_job(lambda markers: arguments, work, f"{name}-commands", self.limit, f"{outcome.trial}")
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

    def _judge_resumed(
        self,
        code: int,
        output: str,
        trial: FolderTrial,
        work: Path,
        path: Path,
        intact: Path,
        newest: str,
        folder: Path,
        outcome: Outcome,
    ) -> None:
        """Check that the run was completed, if necessary after the intact file has been restored."""
        finished = TARGETS[trial.target][0] == "finished"
        if code != 0:
            if NEWEST in trial.target:
                outcome.lost = True
                outcome.complaints.append("resume: the older checkpoints were not used")
                return
            _restore(path, intact)
            ends = self._call(("resume",), newest, work, folder, "restored", outcome)
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
            found = read_finished(work / RUN)
        except (OSError, ValueError) as error:
            outcome.lost = True
            outcome.complaints.append(f"resume: not the folder of a finished run: {error}")
            return
        expected = self.sources.expected
        if "history" in trial.target or finished:  # truncated records are lost
            found, expected = Finished(found.weights, []), Finished(expected.weights, [])
        wrong = differences(found, expected, same_bits=True)
        outcome.lost, outcome.resumed = bool(wrong), found.resumed
        outcome.complaints += wrong
        if (
            NEWEST in trial.target
            and newest not in _resumed_from(work / RUN)
            and not _line_with(output, _names(path, work, newest))
        ):
            outcome.named = False
            outcome.complaints.append(f"resume: the output does not name the damaged {path.relative_to(work)}")


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


def _restore(path: Path, intact: Path) -> None:
    """Replace the damaged file or folder by the intact one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    _copy(intact, path)


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
