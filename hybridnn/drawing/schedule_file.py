"""Schedules of a user's own, read from JSON files.

A file has the lists of instructions of all stages: as texts such as ``"forward 0"`` and ``"backward 0.1"``, or as the
objects that ``hybridnn schedule METHOD --format json`` writes. Where no list has a message, loads and messages are
placed as for the methods of hybridnn.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from hybridnn.errors import DataError
from hybridnn.pipeline.schedules import instructions, weight_policies
from hybridnn.pipeline.schedules.compiled_schedule import place_messages
from hybridnn.pipeline.schedules.instructions import (
    COMPUTATIONS,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule, with_loads
from hybridnn.pipeline.schedules.weight_policies import WeightPolicy
from hybridnn.utils.files import FileError, read_json
from hybridnn.utils.text import shown_path, user_path

KINDS = {
    kind.name: kind
    for kind in vars(instructions).values()
    if isinstance(kind, type) and issubclass(kind, Instruction) and kind.name
}
POLICIES = {policy.name: policy for policy in vars(weight_policies).values() if isinstance(policy, WeightPolicy)}

TEXT = re.compile(r"(?P<name>[a-z ]+?)(?: (?P<minibatch>\d+)(?:\.(?P<microbatch>\d+))?(?: of chunk (?P<chunk>\d+))?)?")
MOST_INSTRUCTIONS = 1_000_000
USES_GRADIENTS = (Backward, InputGradient, WeightGradient, ReduceGradients, Update)
COUNTS = ("minibatches", "microbatches", "chunks")


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule.

    Parameters
    ----------
    path : str or Path
        A JSON object with ``stages``, a list of lists of instructions; ``weight_policy``, a name such as ``"exact"``,
        the default, or ``"stashed"``; and optionally ``method``, a name to show, and the numbers of ``minibatches``,
        ``microbatches`` and ``chunks``, by default those that the instructions have.

    Raises
    ------
    DataError
        If the file cannot be read or is no schedule; the message names the stage and the instruction.
    """
    path = user_path(path)
    called = shown_path(path)
    content = read_json(path)
    try:
        return _schedule(content, path.stem)
    except FileError:
        raise
    except DataError as error:
        raise DataError(f"{called}: {error}") from error


def _schedule(content: Any, name: str) -> Schedule:
    if not isinstance(content, dict) or not isinstance(content.get("stages"), list) or not content["stages"]:
        raise DataError('not a schedule: it must be an object with "stages", a list of lists of instructions')
    policy = content.get("weight_policy", "exact")
    if not isinstance(policy, str) or policy not in POLICIES:
        raise DataError(f"weight_policy = {policy!r}: must be one of {', '.join(POLICIES)}")
    lists = [_stage(stage, number) for number, stage in enumerate(content["stages"])]
    everything = [instruction for order in lists for instruction in order]
    if not everything:
        raise DataError("there is no instruction")
    parts = zip(*(instruction.part for instruction in everything), strict=True)
    counts = [_count(content, key, max(numbers) + 1) for key, numbers in zip(COUNTS, parts, strict=True)]
    minibatches, microbatches, chunks = counts
    bound = (minibatches * microbatches * chunks,) * len(lists)  # none: a file states no bound of its memory
    orders = tuple(map(tuple, lists))
    label = content.get("method")
    made = Schedule(
        label if isinstance(label, str) else name,
        len(lists),
        chunks,
        minibatches,
        microbatches,
        POLICIES[policy],
        orders,
        bound,
    )
    if any(not isinstance(item, COMPUTATIONS) for item in everything):
        return made
    _require_passes(made)
    return place_messages(with_loads(made))


def _require_passes(schedule: Schedule) -> None:
    """Raise DataError unless every stage has the passes of all parts, between which messages are placed."""
    training = any(isinstance(item, USES_GRADIENTS) for order in schedule.orders for item in order)
    counts = range(schedule.minibatches), range(schedule.microbatches), range(schedule.chunks)
    for stage, order in enumerate(schedule.orders):
        forwards = {item.part for item in order if isinstance(item, Forward)}
        backwards = {item.part for item in order if isinstance(item, Backward | InputGradient)}
        for part in product(*counts):
            for kind, found in ((Forward, forwards), (Backward, backwards if training else None)):
                if found is not None and part not in found:
                    raise DataError(f"stage {stage}: {kind(*part)} is missing")


def _count(content: dict[str, Any], key: str, found: int) -> int:
    value = content.get(key, max(found, 1))
    if type(value) is not int or value < 1:
        raise DataError(f"{key} = {value!r}: must be a whole number from 1")
    return value


def _stage(stage: Any, number: int) -> list[Instruction]:
    items = stage.get("instructions") if isinstance(stage, dict) else stage
    if not isinstance(items, list) or len(items) > MOST_INSTRUCTIONS:
        raise DataError(f"stage {number}: not a list of at most {MOST_INSTRUCTIONS:,} instructions")
    found = []
    for position, item in enumerate(items):
        try:
            found.append(_instruction(item))
        except DataError as error:
            raise DataError(f"stage {number}, instruction {position}: {error}") from None
    return found


def _instruction(item: Any) -> Instruction:
    if isinstance(item, str):
        match = TEXT.fullmatch(item.strip())
        if match is None:
            raise DataError(f"{item[:60]!r} is not an instruction such as 'forward 0' or 'backward 0.1'")
        item = {key: value for key, value in match.groupdict().items() if value is not None}
        item = {key: value if key == "name" else int(value) for key, value in item.items()}
        item["instruction"] = item.pop("name")
    if not isinstance(item, dict):
        raise DataError("neither a text nor an object")
    name = item.get("instruction")
    if not isinstance(name, str) or name not in KINDS:
        near = get_close_matches(str(name), KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KINDS)}"
        raise DataError(f"no instruction {str(name)[:40]!r}; {hint}")
    numbers = [item.get(key, 0) for key in ("minibatch", "microbatch", "chunk")]
    least = (0, instructions.ALL_MICROBATCHES, 0)
    for key, value, lowest in zip(("minibatch", "microbatch", "chunk"), numbers, least, strict=True):
        if type(value) is not int or not lowest <= value < MOST_INSTRUCTIONS:
            raise DataError(f"{key} = {value!r}: must be a whole number from 0")
    return KINDS[name](*numbers)
