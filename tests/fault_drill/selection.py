"""Selection of faults, and drawing and running of their trials."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fault_drill.injections import FAULTS
from fault_drill.network_faults import NETWORK_FAULTS
from fault_drill.network_trials import NetworkDrill, NetworkTrial, draw_network_trial
from fault_drill.outcomes import AnyTrial, Outcome
from fault_drill.script_trials import DIFFER, EXIT, LOOP, RANK_FAULTS, ScriptDrill, ScriptTrial, draw_script_trial
from fault_drill.trials import Drill, Trial, draw_trial

__all__ = ["EVERY_FAULT", "KIND_OF", "SHARES", "Drills", "draw"]

SHARES = {
    "kill": 2,
    "stop": 1,
    "signal": 1,
    "raise": 1,
    "full disk": 1,
    "exit": 3,
    "loop": 4,
    "differ": 5,
    "network": 3,
}
"""Trials of each kind among 21."""

KIND_OF = (
    {name: fault.kind for name, fault in FAULTS.items()}
    | dict.fromkeys(EXIT, "exit")
    | dict.fromkeys(LOOP, "loop")
    | dict.fromkeys(DIFFER, "differ")
    | dict.fromkeys(NETWORK_FAULTS, "network")
)
"""Kind of every fault."""

EVERY_FAULT = tuple(KIND_OF)


def draw(
    seed: int, number: int, faults: Sequence[str] = EVERY_FAULT, most_ranks: int = 4, *, evenly: bool = False
) -> AnyTrial:
    """Draw a trial: kinds with the frequencies of `SHARES`, and all faults of a kind, or `evenly` all, alike."""
    name = _in_turn(f"{seed}", number, faults) if evenly else _by_shares(seed, number, faults)
    if name in RANK_FAULTS:
        return draw_script_trial(seed, number, name, most_ranks)
    if name in NETWORK_FAULTS:
        return draw_network_trial(seed, number, name)
    return draw_trial(seed, number, name, most_ranks)


def _in_turn(seed: str, number: int, names: Sequence[str]) -> str:
    """A name from random permutations of all names, one after another."""
    turn, place = divmod(number, len(names))
    return Random(f"{seed} {turn}").sample(names, len(names))[place]


def _by_shares(seed: int, number: int, faults: Sequence[str]) -> str:
    slots = [kind for kind in SHARES if kind in map(KIND_OF.get, faults) for _ in range(SHARES[kind])]
    turn, place = divmod(number, len(slots))
    order = Random(f"{seed} {turn}").sample(slots, len(slots))
    kind = order[place]
    earlier = turn * SHARES[kind] + order[:place].count(kind)
    return _in_turn(f"{seed} {kind}", earlier, [name for name in faults if KIND_OF[name] == kind])


class Drills:
    """Runs trials of all kinds in subfolders of a folder, with a time limit of every job in seconds."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self._trainings, self._scripts = Drill(folder, limit), ScriptDrill(folder, limit)
        self._networks = NetworkDrill(folder, limit)

    def folder_of(self, trial: AnyTrial) -> Path:
        """Folder of the commands and outputs of a trial."""
        return self.folder / f"trial-{trial.number:04d}"

    def carry_out(self, trial: AnyTrial) -> Outcome:
        """Run the trial, and check its results."""
        folder = self.folder_of(trial)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if isinstance(trial, ScriptTrial):
            outcome = self._scripts.carry_out(trial, folder)
        elif isinstance(trial, NetworkTrial):
            outcome = self._networks.carry_out(trial, folder)
        else:
            assert isinstance(trial, Trial)
            outcome = self._trainings.carry_out(trial, folder)
        if outcome.complaints:
            (folder / "complaints.txt").write_text("\n".join(outcome.complaints) + "\n")
        return outcome
