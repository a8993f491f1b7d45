"""Moments of a run at which a fault may be injected: calls of functions of hybridnn, which are counted."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Moment:
    """Calls of functions."""

    phase: str  # phase of the run
    targets: tuple[str, ...]  # ``module:name.name`` of the functions; a call of any of them counts
    calls: int = 1  # least number of calls in a run of any recipe
    first_rank: bool = False  # whether only rank 0 makes these calls


START = "nothing has begun"

_RUN = "hybridnn.runs.run"
_FOLDER = "hybridnn.runs.folder"
_WRITING = "hybridnn.checkpoints.writing"
_FILES = "hybridnn.checkpoints.folder"

MOMENTS = {
    START: Moment("start", ()),
    "the process grid is made": Moment("start", (f"{_RUN}:_make_grid",)),
    "the run folder is made": Moment("start", (f"{_FOLDER}:RunFolder.create",), first_rank=True),
    "the history begins": Moment("start", (f"{_FOLDER}:RunFolder._open_history",), first_rank=True),
    "the settings are written": Moment("start", (f"{_FOLDER}:RunFolder.write_config",), first_rank=True),
    "an update": Moment("training", ("hybridnn.nn.optimizers:Adam.update", "hybridnn.nn.optimizers:SGD.update"), 40),
    "a line of the history": Moment("training", (f"{_FOLDER}:RunFolder.append",), 40, first_rank=True),
    "an evaluation": Moment("evaluation", ("hybridnn.training.engine:Engine.evaluate",), 4),
    "a checkpoint begins": Moment("checkpoint", (f"{_WRITING}:CheckpointWriter._begin",), 3),
    "an array is written": Moment("checkpoint", (f"{_WRITING}:write_rectangle",), 9),
    "the arrays are digested": Moment("checkpoint", (f"{_WRITING}:PendingCheckpoint.hash_arrays",), 3),
    "the arrays go to disk": Moment("checkpoint", (f"{_WRITING}:PendingCheckpoint.sync",), 3),
    "a manifest or its sums": Moment("checkpoint", (f"{_FILES}:write_file",), 6, first_rank=True),
    "before or after a checkpoint gets its name": Moment("checkpoint", (f"{_FILES}:sync",), 6, first_rank=True),
    "old checkpoints are looked for": Moment("checkpoint", (f"{_WRITING}:prune",), 3, first_rank=True),
    "an old checkpoint is removed": Moment("checkpoint", (f"{_FILES}:shutil.rmtree",), first_rank=True),
    "checkpoints are looked at": Moment("resume", ("hybridnn.runs.resume:newest_valid",)),
    "a checkpoint is read": Moment("resume", ("hybridnn.checkpoints.reading:Checkpoint.read_into",)),
    "the history is taken up": Moment("resume", (f"{_FOLDER}:RunFolder.resume",), first_rank=True),
    "the taken history gets its name": Moment("resume", ("hybridnn.utils.files:os.replace",), first_rank=True),
    "the settings are written again": Moment("resume", (f"{_FOLDER}:RunFolder.write_config",), first_rank=True),
    "the weights are written": Moment("end", ("hybridnn.runs.report:draw_learning_curve",), first_rank=True),
    "the history ends": Moment("end", (f"{_FOLDER}:RunFolder.end",), first_rank=True),
    "the folder is left": Moment("end", (f"{_FOLDER}:RunFolder.close",), first_rank=True),
}
"""Moments by name."""

PHASES = {
    phase: tuple(name for name, moment in MOMENTS.items() if moment.phase == phase)
    for phase in dict.fromkeys(moment.phase for moment in MOMENTS.values())
}


def watch(moment: str, call: int, injection: Callable[[], None], after: Path | None = None) -> None:
    """Call `injection` before the `call`-th call of the functions of a moment.

    Where `after` is a run folder, only calls after its first checkpoint count.
    """
    if moment == START:
        injection()
        return
    calls = 0

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def counted(*arguments: Any, **settings: Any) -> Any:
            nonlocal calls
            if calls or after is None or any(after.glob("checkpoints/step-*")):
                calls += 1
                if calls == call:
                    injection()
            return original(*arguments, **settings)

        return counted

    for target in MOMENTS[moment].targets:
        module, _, names = target.partition(":")
        owner: Any = importlib.import_module(module)
        *holders, last = names.split(".")
        for name in holders:
            owner = getattr(owner, name)
        setattr(owner, last, watched(getattr(owner, last)))
