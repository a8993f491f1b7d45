"""Symbolic execution of a schedule, compared with the definition of its method, independent of the linter.

Values are symbols: integers that represent an operation and its operands. Sends block until the peer reaches a receive
of the same channel, which receives any message, as in MPI.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Instruction
from reference.pipelines import DELAYED, Pipeline

Part = tuple[int, int, int]  # minibatch, microbatch, virtual stage


class WrongSchedule(Exception):  # noqa: N818 - the name is the result of a check
    """The schedule deadlocks, reads a missing value, keeps too many arrays, or computes another result."""


@dataclass(frozen=True)
class Definition:
    """A method by definition, with K stages, T minibatches, M microbatches and v chunks."""

    method: str
    stages: int
    minibatches: int
    microbatches: int = 1
    chunks: int = 1
    merged: bool = False

    def forward_read(self, stage: int, t: int) -> tuple[int, int]:
        """Version that the forward pass of minibatch t reads, and number of predicted updates."""
        return self._pipeline.forward_read(stage, t, self.minibatches) if self.method in DELAYED else (t, 0)

    def backward_read(self, stage: int, t: int) -> tuple[int, int]:
        """The same for the backward pass."""
        return self._pipeline.backward_read(stage, t, self.minibatches) if self.method in DELAYED else (t, 0)

    @property
    def _pipeline(self) -> Pipeline:
        return Pipeline(self.method, (1,) * self.stages)

    def stage_of(self, s: int) -> int:
        """Stage of a virtual stage: round and round, or, where layers lie in waves, up and back."""
        chunk, place = divmod(s, self.stages)
        in_waves = self.method in ("zb-v", "dualpipe-v", "v-half", "v-min", "hanayo")
        return self.stages - 1 - place if in_waves and chunk % 2 else place

    def chunk(self, stage: int, number: int) -> int:
        """Virtual stage of a chunk."""
        return next(s for s in range(number * self.stages, (number + 1) * self.stages) if self.stage_of(s) == stage)

    @property
    def last(self) -> int:
        return self.stages * self.chunks - 1

    @property
    def stashes(self) -> bool:
        return self.method in ("ddg", "pipedream", "pipedream-vsync", "pipedream-2bw")

    def most_versions(self, stage: int) -> int:
        if self.method == "pipedream-vsync":
            return self.stages
        if self.method == "pipedream-2bw":
            return 2
        return self.stages - stage if self.stashes else 1

    def most_activations(self, stage: int) -> int:
        K, T, M, v = self.stages, self.minibatches, self.microbatches, self.chunks
        if self.merged and self.method == "pipedream-2bw":
            return min(M + K - 1 - stage, T * M)
        if self.merged or self.method in ("gpipe", "looped-bfs"):
            return M * v
        return {
            "sequential": 1,
            "1f1b": min(K - stage, M),
            "searched": min(K - stage, M),  # without words
            "interleaved": min(2 * (K - 1 - stage) + (v - 1) * K + 1, M * v),
            "zb-h1": min(K, M),
            "zb-h2": min(2 * K - 1, M),
            "eager-1f1b": min(2 * (K - stage) - 1, M),
            "interleaved-zb": min(2 * (K - 1 - stage) + (v - 1) * K + 1 + stage, M * v),
            "zb-v": 2 * K,
            "dualpipe-v": 2 * K + 1,
            "v-half": 2 * min((K + 2) // 2, M),
            "v-min": 2 * min((K + 4) // 3, M),
            "hanayo": min(2 * K + stage, 2 * M),
            "fr": 1,
            "pipedream-2bw": min(K - stage, T * M),
        }.get(self.method, min(K - stage, T))


@dataclass
class Symbols:
    """Table of symbols: equal operations on equal operands have the same integer."""

    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __call__(self, *operation: Any) -> int:
        return self.numbers.setdefault(operation, len(self.numbers))


Outcome = tuple[list[list[int]], dict[tuple[int, int], int]]
"""Weight versions of every stage, and losses by minibatch and microbatch."""


def defined(definition: Definition, symbol: Symbols) -> Outcome:
    """Compute the definition, minibatch by minibatch, without a schedule."""
    K, last = definition.stages, definition.last
    weights = [[symbol("initial weights", k)] for k in range(K)]
    losses: dict[tuple[int, int], int] = {}
    for t in range(definition.minibatches):
        gradients: list[list[int]] = [[] for _ in range(K)]
        for m in range(definition.microbatches):
            value = symbol("input", t, m)
            saved = []
            for s in range(last + 1):
                k = definition.stage_of(s)
                read = _read(symbol, weights[k], definition.forward_read(k, t))
                current = _read(symbol, weights[k], definition.backward_read(k, t))
                of_backward = symbol("activations", s, value, current)
                value = symbol("activations", s, value, read)
                saved.append(of_backward if definition.method == "fr" else value)
            losses[t, m] = value = symbol("loss", value, symbol("target", t, m))
            for s in reversed(range(last + 1)):
                k = definition.stage_of(s)
                current = _read(symbol, weights[k], definition.backward_read(k, t))
                inner = symbol("inner gradients", s, saved[s], value, current)
                gradients[k].append(symbol("weight gradient", inner))
                value = symbol("input gradient", inner)
        for k in range(K):
            weights[k].append(symbol("update", weights[k][t], *sorted(gradients[k])))
    return weights, losses


def _read(symbol: Symbols, versions: Sequence[int], read: tuple[int, int]) -> int:
    """A version, or a prediction from it."""
    version, ahead = read
    return symbol("predicted", versions[version], ahead) if ahead else versions[version]


class _Rank:
    """State of one stage."""

    def __init__(self, definition: Definition, stage: int, symbol: Symbols) -> None:
        self.definition, self.stage, self.symbol = definition, stage, symbol
        self.versions = [symbol("initial weights", stage)]
        self.values: dict[tuple[str, Part], int] = {}
        self.losses: dict[tuple[int, int], int] = {}
        self.inner: dict[Part, int] = {}
        self.gradients: tuple[int, list[int]] = (-1, [])
        self.reduced = False

    def weights(self, t: int, backward: bool) -> int:
        of = self.definition
        version, ahead = (of.backward_read if backward else of.forward_read)(self.stage, t)
        if of.stashes and version >= len(self.versions):
            raise WrongSchedule("a missing weight version")
        return _read(self.symbol, self.versions, (version if of.stashes else -1, ahead))

    def get(self, name: str, part: Part) -> int:
        if (name, part) not in self.values:
            raise WrongSchedule(f"{name} of {part} is missing")
        return self.values[name, part]

    def part(self, instruction: Instruction) -> Part:
        chunk = instruction.chunk
        if not 0 <= chunk < self.definition.chunks:
            raise WrongSchedule("no such chunk")
        return instruction.minibatch, instruction.microbatch, self.definition.chunk(self.stage, chunk)

    def run(self, instruction: Instruction) -> None:
        """Execute an instruction other than a message or a barrier."""
        getattr(self, instruction.name.replace(" ", "_"))(instruction, self.part(instruction))

    def load(self, instruction: Instruction, part: Part) -> None:
        if part[2] == 0:
            self.values["input", part] = self.symbol("input", *part[:2])
        if part[2] == self.definition.last:
            self.values["target", part] = self.symbol("target", *part[:2])

    def forward(self, instruction: Instruction, part: Part, backward: bool = False) -> None:
        value = self.symbol("activations", part[2], self.get("input", part), self.weights(part[0], backward))
        self.values["saved", part] = value
        if not backward:
            self.values["output", part] = value
            if part[2] < self.definition.last and self.definition.stage_of(part[2] + 1) == self.stage:
                self.values["input", (*part[:2], part[2] + 1)] = value  # handed over without a message
            if part[2] == self.definition.last:
                self.losses[part[:2]] = self.symbol("loss", value, self.get("target", part))
                self.values["output gradient", part] = self.losses[part[:2]]

    def recompute(self, instruction: Instruction, part: Part) -> None:
        self.get("saved", part)
        self.forward(instruction, part, backward=True)

    def input_gradient(self, instruction: Instruction, part: Part) -> None:
        saved, gradient = self.get("saved", part), self.get("output gradient", part)
        self.inner[part] = self.symbol("inner gradients", part[2], saved, gradient, self.weights(part[0], True))
        self.values["input gradient", part] = self.symbol("input gradient", self.inner[part])
        if part[2] and self.definition.stage_of(part[2] - 1) == self.stage:
            self.values["output gradient", (*part[:2], part[2] - 1)] = self.values["input gradient", part]

    def weight_gradient(self, instruction: Instruction, part: Part) -> None:
        t, m, s = part
        parts = [(t, i, s) for i in range(self.definition.microbatches)] if m == ALL_MICROBATCHES else [part]
        for item in parts:
            if item not in self.inner:
                raise WrongSchedule("a weight gradient before its input gradient")
            if self.gradients[0] != t:  # the gradient buffer is overwritten
                self.gradients, self.reduced = (t, []), False
            self.gradients[1].append(self.symbol("weight gradient", self.inner[item]))
            if self.reduced:
                raise WrongSchedule("a gradient that misses the reduction")

    def backward(self, instruction: Instruction, part: Part) -> None:
        self.input_gradient(instruction, part)
        self.weight_gradient(instruction, part)

    def reduce_gradients(self, instruction: Instruction, part: Part) -> None:
        if self.gradients[0] != part[0] or self.reduced:
            raise WrongSchedule("nothing to reduce")
        self.reduced = True

    def update(self, instruction: Instruction, part: Part) -> None:
        if self.gradients[0] != part[0] or not self.reduced:
            raise WrongSchedule("nothing to apply")
        self.versions.append(self.symbol("update", self.versions[-1], *sorted(self.gradients[1])))


def carried_out(definition: Definition, orders: Sequence[Sequence[Instruction]], symbol: Symbols) -> Outcome:
    """Execute the instructions of all stages, or raise WrongSchedule."""
    ranks = [_Rank(definition, stage, symbol) for stage in range(definition.stages)]
    places = [0] * definition.stages
    moved = True
    while moved:
        moved = False
        heads = [order[place] if place < len(order) else None for order, place in zip(orders, places, strict=True)]
        if all(head is not None and head.name == "barrier" for head in heads):
            places = [place + 1 for place in places]
            moved = True
            continue
        for stage, head in enumerate(heads):
            if head is None or head.name == "barrier" or head.name.startswith("receive"):
                continue
            if not head.name.startswith("send"):
                ranks[stage].run(head)
                places[stage] += 1
                moved = True
                continue
            moved = _deliver(ranks, stage, head, heads, places) or moved
            if moved:
                break  # the receiver has advanced
    if any(place < len(order) for order, place in zip(orders, places, strict=True)):
        raise WrongSchedule("deadlock")
    return [rank.versions for rank in ranks], ranks[definition.stage_of(definition.last)].losses


def _deliver(
    ranks: list[_Rank], stage: int, send: Instruction, heads: list[Instruction | None], places: list[int]
) -> bool:
    """Deliver a message if the peer is at a receive of the channel."""
    kind = send.name.removeprefix("send ")
    definition, part = ranks[0].definition, ranks[stage].part(send)
    virtual = part[2] + (1 if kind == "activations" else -1)
    if not 0 <= virtual <= definition.last:
        raise WrongSchedule("a message without a receiver")
    peer, chunk = definition.stage_of(virtual), virtual // definition.stages
    receive = heads[peer]
    if peer == stage or receive is None or receive.name != f"receive {kind}" or receive.chunk != chunk:
        return False
    sent, kept = ("output", "input") if kind == "activations" else ("input gradient", "output gradient")
    ranks[peer].values[kept, ranks[peer].part(receive)] = ranks[stage].get(sent, part)
    places[stage] += 1
    places[peer] += 1
    return True


def check(definition: Definition, orders: Sequence[Sequence[Instruction]]) -> None:
    """Raise WrongSchedule if the schedule computes another result, or keeps more arrays than the method allows."""
    symbol = Symbols()
    if carried_out(definition, orders, symbol) != defined(definition, symbol):
        raise WrongSchedule("another result")
    for stage, order in enumerate(orders):
        if _most_activations(order) > definition.most_activations(stage):
            raise WrongSchedule("too many activations")
        if definition.stashes and _most_versions(definition, stage, order) > definition.most_versions(stage):
            raise WrongSchedule("too many weight versions")


def _most_activations(order: Sequence[Instruction]) -> int:
    """Largest number of activations that are computed and needed later, without those of passes that are recomputed."""
    made: dict[Part, list[int]] = {}
    used: dict[Part, int] = {}
    for place, i in enumerate(order):
        part = (i.minibatch, i.microbatch, i.chunk)
        if i.name in ("forward", "recompute"):
            made.setdefault(part, []).append(place)
        elif i.microbatch == ALL_MICROBATCHES:
            used |= {other: place for other in made if (other[0], other[2]) == (i.minibatch, i.chunk)}
        elif i.name in ("backward", "input gradient", "weight gradient"):
            used[part] = place
    return max(
        sum(places[-1] <= place <= used[part] or place in places for part, places in made.items())
        for place in range(len(order))
    )


def _most_versions(definition: Definition, stage: int, order: Sequence[Instruction]) -> int:
    """Largest number of weight versions: the current one, and older ones that are read later."""
    reads = [
        (place, read(stage, i.minibatch)[0])
        for names, read in (
            (("forward",), definition.forward_read),
            (("backward", "input gradient", "recompute"), definition.backward_read),
        )
        for place, i in enumerate(order)
        if i.name in names
    ]
    most = current = 0
    for place, i in enumerate(order):
        current += i.name == "update"
        older = {version for later, version in reads if later >= place and version < current}
        most = max(most, 1 + len(older))
    return most
