"""Executor: runs one stage's list of instructions over MPI, whatever the method.

Each instruction is compiled, once for every size of minibatch, to a function that is bound to its arrays, weights and
channels. Receives are started ahead of time and completed where their data are used; sends are completed when their
buffer is needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.partition import block_bounds, block_size
from hybridnn.parallel.dense import WeightGradientArrays
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk import Chunk
from hybridnn.pipeline.execution.mailbox import Message
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

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Samples of one optimizer step.

    Attributes
    ----------
    number : int
        Of the step, from 0, since the training began.
    size : int
        Samples, over all ranks.
    rate : float
        Learning rate of the update.
    samples : object
        What `load` finds the samples by, such as their indices.
    load : callable
        ``load(samples, start, stop, x, y)`` fills `x` or `y`, unless None, with this rank's block of the samples
        `start` to `stop` of the minibatch.
    """

    number: int
    size: int
    rate: float
    samples: Any
    load: Callable[[Any, int, int, Array | None, Array | None], None]


Operation = Callable[[Minibatch], None]
"""A compiled instruction."""

Loss = Callable[[StageArrays, int, Array], None]
"""Fills the output gradient of a microbatch, for a minibatch of a size, and an array of shape (1,) with its loss."""

TakeOutputs = Callable[[Minibatch, StageArrays], None]
"""Takes the network's outputs for a minibatch."""


class Executor:
    """Runs a program on this rank, any number of times.

    Parameters
    ----------
    program : StageProgram
        Of this rank's stage, from a linted schedule.
    grid : ProcessGrid
        Its pipeline axis has the schedule's stages.
    chunks : sequence of Chunk
        This rank's layers with their memory, enough for the schedule.
    loss : callable, optional
        See `Loss`; for programs that train.
    """

    def __init__(
        self, program: StageProgram, grid: ProcessGrid, chunks: Sequence[Chunk], loss: Loss | None = None
    ) -> None:
        self._program, self._grid, self._chunks, self._loss = program, grid, chunks, loss
        self._microbatches = program.schedule.microbatches
        self._operations: dict[tuple[int, int], Operation] = {}
        self._steps: dict[int, tuple[list[Operation], list[Operation]]] = {}
        self._has_messages = grid.pipeline > 1
        self._take_outputs: TakeOutputs | None = None
        self._compilers: dict[type[Instruction], Callable[[int, int, Instruction, Chunk], Operation | None]] = {
            LoadInput: self._load_input,
            LoadTarget: self._load_target,
            ReceiveActivations: self._receive,
            ReceiveGradients: self._receive,
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

    def train(self, minibatches: Sequence[Minibatch]) -> Iterator[Minibatch]:
        """Train on consecutive minibatches; collective over the grid.

        Yields
        ------
        Minibatch
            Each one when its gradients are complete. The update follows when the iteration goes on.
        """
        if self._has_messages or len(minibatches) > 1:
            self._begin(minibatches)
        if len(minibatches) == self._program.schedule.minibatches == 1:
            (minibatch,) = minibatches
            gradient, update = self._steps.get(minibatch.size) or self._compile_step(minibatch.size)
            for operation in gradient:
                operation(minibatch)
            yield minibatch
            for operation in update:
                operation(minibatch)
        else:
            order = self._program.order
            for place, shift in self._program.walk(len(minibatches)):
                instruction = order[place]
                if isinstance(instruction, Barrier):  # of no minibatch: it may come after the last one
                    self._grid.world.barrier()
                    continue
                minibatch = minibatches[instruction.minibatch + shift]
                if isinstance(instruction, Update):
                    yield minibatch
                self._operation(place, minibatch.size)(minibatch)
        if self._has_messages:
            self._finish()

    def forward(self, minibatches: Sequence[Minibatch], take_outputs: TakeOutputs) -> None:
        """Run forward passes alone; collective over the grid.

        Parameters
        ----------
        minibatches : sequence of Minibatch
        take_outputs : callable
            See `TakeOutputs`; called on the last stage.
        """
        self._take_outputs = take_outputs
        self._begin(minibatches)
        for place, shift in self._program.walk(len(minibatches)):
            minibatch = minibatches[self._program.order[place].minibatch + shift]
            self._operation(place, minibatch.size)(minibatch)
        self._finish()
        self._take_outputs = None

    def _begin(self, minibatches: Sequence[Minibatch]) -> None:
        for chunk in self._chunks:
            chunk.begin(partial(self._messages, minibatches), [minibatch.rate for minibatch in minibatches])

    def _finish(self) -> None:
        for chunk in self._chunks:
            chunk.finish()

    def _messages(self, minibatches: Sequence[Minibatch], kind: type[Instruction], chunk: int) -> Iterator[Message]:
        """Messages of a kind to a chunk, in order."""
        order = self._program.order
        for place, shift in self._program.walk(len(minibatches)):
            instruction = order[place]
            if type(instruction) is kind and instruction.chunk == chunk:
                minibatch = minibatches[instruction.minibatch + shift]
                yield (instruction, minibatch.number), self._samples(minibatch.size, instruction)

    # -- compilation -------------------------------------------------------------------------------------------------

    def _compile_step(self, size: int) -> tuple[list[Operation], list[Operation]]:
        """Operations before the update of a schedule of one minibatch, and from there on."""
        order = self._program.order
        update = next(place for place, item in enumerate(order) if isinstance(item, Update))
        compiled = [self._compile(place, size) for place in range(len(order))]
        self._steps[size] = [o for o in compiled[:update] if o], [o for o in compiled[update:] if o]
        return self._steps[size]

    def _operation(self, place: int, size: int) -> Operation:
        operation = self._operations.get((place, size))
        if operation is None:
            operation = self._operations[place, size] = self._compile(place, size) or _no_operation
        return operation

    def _compile(self, place: int, size: int) -> Operation | None:
        """The operation of an instruction for minibatches of a size; None where there is nothing to do."""
        instruction = self._program.order[place]
        return self._compilers[type(instruction)](place, size, instruction, self._chunks[instruction.chunk])

    def _load_input(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        start, stop = self._bounds(size, instruction)
        arrays = self._arrays(place, size)
        x, y = arrays.samples, arrays.targets if self._is_with_target(place) else None

        def load(minibatch: Minibatch) -> None:
            minibatch.load(minibatch.samples, start, stop, x, y)

        return load

    def _is_with_target(self, place: int) -> bool:
        """Whether the targets of the samples that are loaded at a place follow at once."""
        instruction, *following = self._program.order[place : place + 2]
        return following == [LoadTarget(instruction.minibatch, instruction.microbatch, instruction.chunk)]

    def _load_target(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation | None:
        if place and isinstance(self._program.order[place - 1], LoadInput) and self._is_with_target(place - 1):
            return None
        start, stop = self._bounds(size, instruction)
        y = self._arrays(place, size).targets

        def load(minibatch: Minibatch) -> None:
            minibatch.load(minibatch.samples, start, stop, None, y)

        return load

    def _receive(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> None:
        """Nothing: the receive is started ahead, and completed by the pass that uses the message."""

    def _forward(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        arrays, compute = self._arrays(place, size), self._recompute(place, size, instruction, chunk)
        inbox, outbox, trains = chunk.input_messages, chunk.outputs_to_send, self._program.trains
        samples = self._samples(size, instruction)
        if inbox is None and outbox is None and trains:
            return compute

        def forward(minibatch: Minibatch) -> None:
            if inbox is not None:
                inbox.take(arrays.input)
            compute(minibatch)
            if outbox is not None:
                outbox.pack(arrays.outputs, samples)
            elif not trains:
                assert self._take_outputs is not None
                self._take_outputs(minibatch, arrays)

        return forward

    def _recompute(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        arrays, weights = self._arrays(place, size), self._weights(place, chunk)
        forward, end_compute, name = chunk.stage.forward, self._grid.recorder.end_compute, instruction.name

        def compute(minibatch: Minibatch) -> None:
            start = perf_counter()
            forward(arrays, weights())
            end_compute(name, start, (instruction, minibatch.number))

        return compute

    def _send_activations(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        outbox = chunk.outputs_to_send
        assert outbox is not None
        return lambda minibatch: outbox.send((instruction, minibatch.number))

    def _send_gradients(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        outbox = chunk.gradients_to_send
        assert outbox is not None
        return lambda minibatch: outbox.send((instruction, minibatch.number))

    def _backward(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        arrays, weights = self._arrays(place, size), self._weights(place, chunk)
        accumulate, reduce = place in self._program.accumulating, self._reduces(place)
        backward = chunk.stage.backward
        return self._backward_pass(
            place,
            size,
            instruction,
            chunk,
            lambda: backward(arrays, weights(), accumulate=accumulate, reduce=reduce),
        )

    def _input_gradient(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        arrays, weights = self._arrays(place, size), self._weights(place, chunk)
        input_gradient, take = chunk.stage.input_gradient, None
        if chunk.joined is not None:
            first, samples = self._columns(size, instruction)
            take = partial(chunk.joined.take, first=first, samples=samples)
        return self._backward_pass(place, size, instruction, chunk, lambda: input_gradient(arrays, weights(), take))

    def _backward_pass(
        self, place: int, size: int, instruction: Instruction, chunk: Chunk, compute: Callable[[], None]
    ) -> Operation:
        """A pass that begins with the gradient of the outputs and ends with that of the inputs."""
        arrays, samples = self._arrays(place, size), self._samples(size, instruction)
        inbox, outbox = chunk.gradient_messages, chunk.gradients_to_send
        end_compute, name = self._grid.recorder.end_compute, instruction.name
        loss = self._loss_of(place, size, chunk, arrays)

        def backward(minibatch: Minibatch) -> None:
            about = (instruction, minibatch.number)
            start = perf_counter()
            if inbox is not None:
                inbox.take(arrays.output_gradient)
            else:
                loss()
                end_compute("loss", start, about)
            start = perf_counter()
            compute()
            end_compute(name, start, about)
            if outbox is not None:
                assert arrays.input_gradient is not None
                outbox.pack(arrays.input_gradient, samples)

        return backward

    def _loss_of(self, place: int, size: int, chunk: Chunk, arrays: StageArrays) -> Callable[[], None]:
        """Computes the loss of a microbatch and adds it to that of earlier ones."""
        stage, loss = chunk.stage, self._loss
        if loss is None or chunk.gradient_messages is not None:
            return lambda: None
        if place in self._program.first_backward:
            return partial(loss, arrays, size, stage.loss)

        def add_loss() -> None:
            loss(arrays, size, chunk.loss)
            stage.kernels.add(stage.loss, chunk.loss, stage.loss)

        return add_loss

    def _weight_gradient(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        reduce, accumulate = self._reduces(place), place in self._program.accumulating
        weight_gradient, end_compute = chunk.stage.weight_gradient, self._grid.recorder.end_compute
        if instruction.microbatch == ALL_MICROBATCHES:
            assert chunk.joined is not None
            layers: Sequence[WeightGradientArrays] = chunk.joined.layers(self._columns(size, instruction)[1])
        else:
            layers = self._arrays(place, size).layers

        def compute(minibatch: Minibatch) -> None:
            start = perf_counter()
            weight_gradient(layers, accumulate=accumulate, reduce=reduce)
            end_compute(instruction.name, start, (instruction, minibatch.number))

        return compute

    def _reduces(self, place: int) -> bool:
        """Whether a pass completes gradients that are all-reduced over a batch group of several ranks."""
        return self._grid.batch > 1 and place in self._program.reducing

    def _reduce(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        stages = [chunk.stage for chunk in self._chunks]

        def finish_reduction(minibatch: Minibatch) -> None:
            for stage in stages:
                stage.finish_reduction()

        return finish_reduction

    def _update(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        updates = [partial(chunk.weights.update, kept=self._program.kept[place]) for chunk in self._chunks]
        end_compute = self._grid.recorder.end_compute

        def update(minibatch: Minibatch) -> None:
            start = perf_counter()
            for update_chunk in updates:
                update_chunk(minibatch.rate)
            end_compute(instruction.name, start, (instruction, minibatch.number))

        return update

    def _barrier(self, place: int, size: int, instruction: Instruction, chunk: Chunk) -> Operation:
        return lambda minibatch: self._grid.world.barrier()

    # -- sizes, arrays and weights -----------------------------------------------------------------------------------

    def _bounds(self, size: int, instruction: Instruction) -> tuple[int, int]:
        """First sample of a microbatch within a minibatch of a size, and the one after its last."""
        return block_bounds(size, self._microbatches, instruction.microbatch)

    def _samples(self, size: int, instruction: Instruction) -> int:
        """Samples of a microbatch, over all ranks."""
        return block_size(size, self._microbatches, instruction.microbatch)

    def _own_samples(self, samples: int) -> int:
        return block_size(samples, self._grid.batch, self._grid.batch_rank)

    def _columns(self, size: int, instruction: Instruction) -> tuple[int, int]:
        """First column of this rank's block of a microbatch among those of the minibatch, and the columns of all."""
        count = self._microbatches
        own = [self._own_samples(block_size(size, count, number)) for number in range(count)]
        firsts = list(accumulate(own, initial=0))
        return firsts[max(instruction.microbatch, 0)], firsts[-1]

    def _arrays(self, place: int, size: int) -> StageArrays:
        """Arrays of an instruction's microbatch, with the activations of the pass that it is, or that it uses."""
        program, instruction = self._program, self._program.order[place]
        chunk = self._chunks[instruction.chunk]
        is_pass = isinstance(instruction, (Forward, Recompute))
        computed_by = instruction if is_pass else program.last_pass(instruction)
        return (chunk.training_workspace if program.trains else chunk.workspace).arrays(
            self._own_samples(self._samples(size, instruction)),
            program.memory.input_slots[instruction.minibatch, instruction.microbatch, instruction.chunk],
            program.memory.activation_slots[computed_by],
        )

    def _weights(self, place: int, chunk: Chunk) -> Callable[[], Any]:
        """Returns the parameters that a pass reads; None for the current ones."""
        age, ahead = self._program.reads[place]
        if age == ahead == 0:
            return _current
        return partial(chunk.weights.read, age, ahead)


def _no_operation(minibatch: Minibatch) -> None:
    pass


def _current() -> None:
    """The current weights, which a stage has."""
