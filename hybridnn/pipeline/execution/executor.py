"""The executor: runs one stage's list of instructions over MPI, whatever the method.

Receives are begun ahead of time and waited for where their data are used, sends are waited for when their buffer is
needed again, and every buffer is known before the first step. Everything else is in the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from time import perf_counter
from typing import Any, Protocol

from numpy.typing import NDArray

from hybridnn.comm.partition import block_bounds, block_size
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk import Chunk
from hybridnn.pipeline.execution.program import StageProgram
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    LoadInput,
    LoadTarget,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.memory_plan import MemoryPlan, plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule

Array = NDArray[Any]

PASSES = (Forward, Recompute)


class Work(Protocol):
    """What the minibatches of a run are, and what is done with losses and gradients."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of every minibatch, over all ranks."""
        ...

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """Fill `x` or `y` with this rank's block of the samples `start` to `stop` of a minibatch."""
        ...

    def loss(self, minibatch: int, arrays: StageArrays, loss: Array) -> None:
        """Fill the output gradient, and `loss`, shape (1,), with the sum of the losses."""
        ...

    def outputs(self, minibatch: int, start: int, stop: int, arrays: StageArrays) -> None:
        """Take the network's outputs, on the last stage of a run without backward passes."""
        ...

    def rate(self, minibatch: int) -> float:
        """Learning rate of the minibatch's update."""
        ...

    def reduced(self, minibatch: int) -> None:
        """Look at the gradients of a minibatch, and change them, before they are applied."""
        ...

    def updated(self, minibatch: int) -> None:
        """Take notice that a minibatch's gradients were applied."""
        ...


class Executor:
    """Runs a schedule on this rank, any number of times.

    Parameters
    ----------
    schedule : Schedule
        Linted.
    grid : ProcessGrid
        Its pipeline axis has the schedule's stages.
    chunks : sequence of Chunk
        This rank's layers with their memory, enough for the schedule.
    """

    def __init__(self, schedule: Schedule, grid: ProcessGrid, chunks: Sequence[Chunk]) -> None:
        self._schedule, self._grid, self._chunks = schedule, grid, chunks
        self._work: Work
        self._stage = grid.pipeline_rank
        self._order = schedule.orders[self._stage]
        self._program = StageProgram(schedule, self._stage)
        self._firsts: dict[int, list[int]] = {}
        self._where: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._handlers: dict[type[Instruction], Callable[[int, Instruction], None]] = {
            LoadInput: self._load_input,
            LoadTarget: self._load_target,
            ReceiveActivations: self._nothing,  # begun ahead, waited for by the forward pass
            ReceiveGradients: self._nothing,  # begun ahead, waited for by the backward pass
            SendActivations: self._send_activations,
            SendGradients: self._send_gradients,
            Forward: self._forward,
            Recompute: self._recompute,
            Backward: self._backward,
            InputGradient: self._input_gradient,
            WeightGradient: self._weight_gradient,
            ReduceGradients: self._reduce,
            Update: self._update,
            Barrier: self._barrier,
        }

    @cached_property
    def memory_plan(self) -> MemoryPlan:
        """Which buffer each instruction uses."""
        return plan_memory(self._schedule, self._stage)

    def run(self, work: Work) -> None:
        """Carry out the list on the minibatches of `work`; collective over the grid."""
        self._work = work
        for chunk in self._chunks:
            chunk.begin(self._messages, self.memory_plan.last_readers)
        for place, instruction in enumerate(self._order):
            self._handlers[type(instruction)](place, instruction)
        for chunk in self._chunks:
            chunk.finish()
        del self._work  # and the data that it holds

    # -- sizes and arrays --------------------------------------------------------------------------------------------

    def _bounds(self, instruction: Instruction) -> tuple[int, int]:
        """First sample of a microbatch within its minibatch, and the one after its last."""
        size = self._work.sizes[instruction.minibatch]
        return block_bounds(size, self._schedule.microbatches, instruction.microbatch)

    def _samples(self, instruction: Instruction) -> int:
        """Samples of a microbatch, over all ranks."""
        return block_size(self._work.sizes[instruction.minibatch], self._schedule.microbatches, instruction.microbatch)

    def _messages(self, kind: type[Instruction], chunk: int) -> list[tuple[Instruction, int]]:
        return [(item, self._samples(item)) for item in self._program.of_kind(kind, chunk)]

    def _own_samples(self, samples: int) -> int:
        return block_size(samples, self._grid.batch, self._grid.batch_rank)

    def _arrays(self, place: int, instruction: Instruction) -> StageArrays:
        """Arrays of an instruction's microbatch, with the activations of the pass that it is, or that it uses."""
        size = self._work.sizes[instruction.minibatch]
        where = self._where.get((place, size))
        if where is None:
            plan = self.memory_plan
            part = instruction.minibatch, instruction.microbatch, instruction.chunk
            computed_by = instruction if isinstance(instruction, PASSES) else self._program.last_pass(instruction)
            where = (
                self._own_samples(self._samples(instruction)),
                plan.input_slots[part],
                plan.activation_slots[computed_by],
            )
            self._where[place, size] = where
        chunk = self._chunks[instruction.chunk]
        return (chunk.training_workspace if self._program.trains else chunk.workspace).arrays(*where)

    # -- instructions ------------------------------------------------------------------------------------------------

    def _nothing(self, place: int, instruction: Instruction) -> None:
        pass

    def _load_input(self, place: int, instruction: Instruction) -> None:
        start, stop = self._bounds(instruction)
        arrays = self._arrays(place, instruction)
        self._work.load(instruction.minibatch, start, stop, arrays.samples, None)

    def _load_target(self, place: int, instruction: Instruction) -> None:
        start, stop = self._bounds(instruction)
        arrays = self._arrays(place, instruction)
        self._work.load(instruction.minibatch, start, stop, None, arrays.targets)

    def _forward(self, place: int, instruction: Instruction) -> None:
        chunk = self._chunks[instruction.chunk]
        arrays = self._arrays(place, instruction)
        if chunk.input_messages is not None:
            chunk.input_messages.take(arrays.input)
        self._compute(instruction, chunk, arrays)
        if chunk.outputs_to_send is not None:
            chunk.outputs_to_send.pack(arrays.outputs, self._samples(instruction))
        elif not self._program.trains:
            self._work.outputs(instruction.minibatch, *self._bounds(instruction), arrays)

    def _recompute(self, place: int, instruction: Instruction) -> None:
        self._compute(instruction, self._chunks[instruction.chunk], self._arrays(place, instruction))

    def _compute(self, instruction: Instruction, chunk: Chunk, arrays: StageArrays) -> None:
        start = perf_counter()
        chunk.stage.forward(arrays, self._weights(instruction, chunk))
        self._computed(instruction, start)

    def _send_activations(self, place: int, instruction: Instruction) -> None:
        outbox = self._chunks[instruction.chunk].outputs_to_send
        assert outbox is not None
        outbox.send(instruction)

    def _send_gradients(self, place: int, instruction: Instruction) -> None:
        outbox = self._chunks[instruction.chunk].gradients_to_send
        assert outbox is not None
        outbox.send(instruction)

    def _backward(self, place: int, instruction: Instruction) -> None:
        chunk = self._chunks[instruction.chunk]
        arrays = self._with_output_gradient(place, instruction, chunk)
        start = perf_counter()
        chunk.stage.backward(
            arrays,
            self._weights(instruction, chunk),
            accumulate=place in self._program.accumulating,
            reduce=place in self._program.reducing,
        )
        self._computed(instruction, start)
        self._hand_over(instruction, chunk, arrays)

    def _input_gradient(self, place: int, instruction: Instruction) -> None:
        chunk = self._chunks[instruction.chunk]
        arrays = self._with_output_gradient(place, instruction, chunk)
        start = perf_counter()
        take = None
        if chunk.joined is not None:
            first, samples = self._columns(instruction)
            take = partial(chunk.joined.take, first=first, samples=samples)
        chunk.stage.input_gradient(arrays, self._weights(instruction, chunk), take)
        self._computed(instruction, start)
        self._hand_over(instruction, chunk, arrays)

    def _weight_gradient(self, place: int, instruction: Instruction) -> None:
        chunk, reduce = self._chunks[instruction.chunk], place in self._program.reducing
        start = perf_counter()
        if instruction.microbatch == ALL_MICROBATCHES:
            assert chunk.joined is not None
            _, samples = self._columns(instruction)
            chunk.stage.weight_gradient(chunk.joined.layers(samples), reduce=reduce)
        else:
            arrays = self._arrays(place, instruction)
            accumulate = place in self._program.accumulating
            chunk.stage.weight_gradient(arrays.layers, accumulate=accumulate, reduce=reduce)
        self._computed(instruction, start)

    def _reduce(self, place: int, instruction: Instruction) -> None:
        for chunk in self._chunks:
            chunk.stage.finish_reduction()

    def _update(self, place: int, instruction: Instruction) -> None:
        number = instruction.minibatch
        self._work.reduced(number)
        start = perf_counter()
        for chunk in self._chunks:
            chunk.weights.update(place, self._work.rate(number))
        self._computed(instruction, start)
        self._work.updated(number)

    def _barrier(self, place: int, instruction: Instruction) -> None:
        self._grid.world.barrier()

    # -- parts of instructions ---------------------------------------------------------------------------------------

    def _weights(self, instruction: Instruction, chunk: Chunk) -> Sequence[LayerParameters]:
        read = self._schedule.weights_read(self._stage, instruction)
        assert read is not None
        return chunk.weights.read(read, self._work.rate)

    def _with_output_gradient(self, place: int, instruction: Instruction, chunk: Chunk) -> StageArrays:
        """The microbatch's arrays, with the gradient of its outputs: of the loss, or from the stage after."""
        arrays = self._arrays(place, instruction)
        if chunk.gradient_messages is not None:
            chunk.gradient_messages.take(arrays.output_gradient)
            return arrays
        start = perf_counter()
        if place in self._program.first_backward:
            self._work.loss(instruction.minibatch, arrays, chunk.stage.loss)
        else:
            self._work.loss(instruction.minibatch, arrays, chunk.loss)
            total = chunk.stage.loss
            chunk.stage.kernels.add(total, chunk.loss, total)
        self._grid.recorder.end_compute("loss", start, instruction)
        return arrays

    def _hand_over(self, instruction: Instruction, chunk: Chunk, arrays: StageArrays) -> None:
        if chunk.gradients_to_send is not None:
            assert arrays.input_gradient is not None
            chunk.gradients_to_send.pack(arrays.input_gradient, self._samples(instruction))

    def _columns(self, instruction: Instruction) -> tuple[int, int]:
        """Where this rank's block of a microbatch lies among its blocks of the minibatch, and the columns of all."""
        size = self._work.sizes[instruction.minibatch]
        if size not in self._firsts:
            count = self._schedule.microbatches
            own = [self._own_samples(block_size(size, count, number)) for number in range(count)]
            self._firsts[size] = list(accumulate(own, initial=0))
        firsts = self._firsts[size]
        return firsts[max(instruction.microbatch, 0)], firsts[-1]

    def _computed(self, instruction: Instruction, start: float) -> None:
        self._grid.recorder.end_compute(instruction.name, start, instruction)
