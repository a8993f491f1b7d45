"""Orders of computations of pipelines whose chunks lie in waves: down the stages and up again.

As in `hybridnn.pipeline.schedules.computation_orders`. F0 and F1 are the next forward passes of a stage's chunks 0 and
1, B0 and B1 its next input gradients, and W is the oldest weight gradient that is due. M is at least 2K for `zb_v` and
`dualpipe_v`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache

from hybridnn.pipeline.schedules.computation_orders import update_of
from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Instruction, WeightGradient
from hybridnn.pipeline.schedules.placements import WAVES
from hybridnn.pipeline.schedules.schedule import ScheduleSize


def zb_v(size: ScheduleSize, stage: int) -> list[Instruction]:
    """No bubble with the memory of 1F1B, in K microbatches (Qi et al. 2024, *Zero Bubble*, ZB-V).

    With passes of equal length. Each stage begins and ends at another time: there is no bubble if it updates at once.
    """
    left = size.stages - stage
    start = ("F0", 2 * left - 1), ("F1 F0", stage), ("F1 B1 W", left)
    middle = ("F0 B0 W F1 B1 W", size.microbatches - size.stages - left + 1), ("B0 W F1 B1 W", left - 1)
    return _written(size, *start, *middle, ("B0 B1", stage), ("B0 W", left), ("W", 2 * stage))


def dualpipe_v(size: ScheduleSize, stage: int) -> list[Instruction]:
    """DualPipe cut in half (DeepSeek-AI 2025, DualPipeV); its overlapped pairs of passes follow one another here."""
    left = size.stages - 1 - stage
    full, half = divmod(stage + 1, 2)
    start = ("F0", 2 * left), ("F0 F1", stage + 1), ("B1 W F1", left)
    middle = ("F0 B1 W F1 B0 W", size.microbatches - size.stages - left), ("B1 W F1 B0 W", left)
    end = ("B1 W B0 W", full), ("B1 W B0", half), ("B1 B0", full), ("W B0", left), ("W", stage + 1)
    return _written(size, *start, *middle, *end)


def v_half(size: ScheduleSize, stage: int) -> list[Instruction]:
    """Half of the activations of 1F1B (Qi et al. 2024, *Pipeline Parallelism with Controllable Memory*, V-Half)."""
    stages, shift = size.stages, 3 * (size.stages % 2 == 0)
    firsts = {"F0": 2 * stage, "F1": 3 * stages - 2 - stage}
    return _repeated(size, firsts | {"B1": 3 * stages - 1 + shift + 2 * stage, "B0": 6 * stages - 2 + shift - stage})


def v_min(size: ScheduleSize, stage: int) -> list[Instruction]:
    """A third of the activations of 1F1B (Qi et al. 2024, *Pipeline Parallelism with Controllable Memory*, V-Min)."""
    stages, shift = size.stages, 2 * (size.stages % 3 == 0)
    firsts = {"F0": stage, "F1": 2 * stages - 1 - stage}
    return _repeated(size, firsts | {"B1": 2 * stages + shift + stage, "B0": 4 * stages - 1 + shift - stage})


def hanayo(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B in waves: each pass as soon as its input is there (Liu et al. 2023, Hanayo).

    A stage takes forward and backward passes in turn if both can begin, and has 2K - 1 microbatches in flight at most.
    """
    passes = _in_waves(size.stages, size.microbatches, size.chunks)[stage]
    minibatches = range(size.minibatches)
    return [item for t in minibatches for item in (*(one.of_minibatch(t) for one in passes), *update_of(t))]


@lru_cache(4)
def _in_waves(stages: int, microbatches: int, chunks: int) -> list[list[Instruction]]:
    """The passes of all stages, timed with one unit for forward and two for backward passes."""
    orders: list[list[Instruction]] = [[] for _ in range(stages)]
    free, last = [0] * stages, stages * chunks - 1
    ends: dict[tuple[bool, int, int], int] = {}  # of the passes of virtual stages, by whether they go back
    done: Counter[tuple[bool, int]] = Counter()

    def ready(time: int, back: bool, virtual: int) -> bool:
        m = done[back, virtual]
        if m == microbatches or (virtual == 0 and not back and m - done[True, 0] >= 2 * stages - 1):
            return False
        before = (back and virtual < last, virtual + (virtual < last) if back else virtual - 1, m)
        return before[1] < 0 or ends.get(before, time + 1) <= time

    time = 0
    while done.total() < 2 * microbatches * (last + 1):
        for stage in (stage for stage in range(stages) if free[stage] <= time):
            order, places = orders[stage], [WAVES.virtual(stage, chunk, stages) for chunk in range(chunks)]
            kinds = (False, True) if order and isinstance(order[-1], Backward) else (True, False)
            # The pass with the fewest to follow it.
            possible = ((back, virtual) for back in kinds for virtual in (places if back else reversed(places)))
            if (found := next((one for one in possible if ready(time, *one)), None)) is not None:
                m, free[stage] = done[found], time + 1 + found[0]
                ends[(*found, m)] = free[stage]
                done[found] += 1
                order.append((Backward if found[0] else Forward)(0, m, found[1] // stages))
        time += 1
    return orders


def _repeated(size: ScheduleSize, firsts: dict[str, int]) -> list[Instruction]:
    """The passes of microbatch 0 at their times, those of each other one six units later; weight gradients between."""
    due = sorted((time + 6 * m, name) for name, time in firsts.items() for m in range(size.microbatches))
    words, now, waiting = [], 0, 0
    for time, name in due:
        fitting = min(waiting, time - now)
        words += ["W"] * fitting + [name]
        now, waiting = time + 1, waiting - fitting + (name[0] == "B")
    return _written(size, (" ".join(words), 1), ("W", waiting))


def _written(size: ScheduleSize, *parts: tuple[str, int]) -> list[Instruction]:
    """The passes of texts, each so many times, for every minibatch."""
    names = [name for text, times in parts for name in text.split() * times]
    return [item for t in range(size.minibatches) for item in (*_passes(t, names), *update_of(t))]


def _passes(t: int, names: Iterable[str]) -> Iterable[Instruction]:
    counts: Counter[str] = Counter()
    due: deque[Instruction] = deque()
    for name in names:
        if name == "W":
            yield due.popleft()
            continue
        m, chunk = counts[name], int(name[1])
        counts[name] += 1
        if name[0] == "B":
            due.append(WeightGradient(t, m, chunk))
        yield (InputGradient if name[0] == "B" else Forward)(t, m, chunk)
