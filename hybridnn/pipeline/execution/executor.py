"""Executor: runs one stage's list of instructions over MPI, for every pipeline method.

Each instruction is compiled, once per minibatch size, to a function that is bound to its arrays, weights and channels.
Receives are started ahead of time and completed when their data are used; sends are completed when their buffer is
needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.comm.blocks import block_bounds, block_size
from hybridnn.nn.kernels import HostArray
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.dense import WeightGradientArrays
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Load,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.program import StageProgram

if TYPE_CHECKING:
    from hybridnn.pipeline.execution.point_to_point import ExpectedMessage, Sender


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Samples of one optimizer step.

    ``load(samples, start, stop, x, y)`` fills `x` and `y`, if not None, with this rank's block of the samples ``start``
    to ``stop - 1`` of the minibatch.
    """

    number: int  # number of the step, from 0, since the start of the training
    size: int  # number of samples, over all ranks
    rate: float  # learning rate of the update
    samples: Any  # identifies the samples for `load`, for example by their indices
    load: Callable[[Any, int, int, HostArray | None, HostArray | None], None]


Operation = Callable[[Minibatch], None]  # a compiled instruction

Loss = Callable[[StageArrays, int, HostArray], None]
"""``loss(arrays, size, total)`` computes the output gradient of a microbatch of a minibatch of `size` samples, and
writes the microbatch's loss to `total`, shape (1,)."""

TakeOutputs = Callable[[Minibatch, StageArrays], None]  # callback for the network's outputs for a minibatch

NoteWeights = Callable[[Instruction, Minibatch, Sequence[LayerParameters]], None]
"""Callback before a forward or backward pass, with the weights that it reads."""


class _Task(NamedTuple):
    """An instruction to compile: its position in the program, and the samples of the minibatches that it is for."""

    position: int
    size: int
    instruction: Instruction
    runtime: ChunkRuntime


class Executor:
    """Runs a program on this rank, any number of times.

    Parameters
    ----------
    program : StageProgram
        Program of this rank's stage, from a linted schedule.
    grid : ProcessGrid
        With as many pipeline ranks as the schedule has stages.
    runtimes : sequence of ChunkRuntime
        Of this rank's chunks, with enough memory for the schedule.
    loss : callable, optional
        See `Loss`; for training.
    note_weights : callable, optional
        See `NoteWeights`.
    labels : bool, optional
        Whether the targets are labels; None: there are no targets.
    """

    def __init__(
        self,
        program: StageProgram,
        grid: ProcessGrid,
        runtimes: Sequence[ChunkRuntime],
        loss: Loss | None = None,
        note_weights: NoteWeights | None = None,
        labels: bool | None = None,
    ) -> None:
        self._program, self._grid, self._runtimes, self._loss = program, grid, runtimes, loss
        self._note_weights, self._labels = note_weights, labels
        self._microbatches = program.schedule.microbatches
        self._operation = cache(self._compile)  # by position and size of the minibatch
        self._steps: dict[int, tuple[list[Operation], list[Operation]]] = {}
        self._walk: Iterator[tuple[Instruction, Operation, Minibatch]] | None = None
        self._left = 0  # updates to the end of the walk
        self._update_next: Sequence[Operation] = ()
        self._has_messages = grid.pipeline > 1
        self._take_outputs: TakeOutputs | None = None
        self._compilers: dict[type[Instruction], Callable[[_Task], Operation]] = {
            Load: self._load,
            # A receive is started ahead, and completed by the pass that uses the message.
            ReceiveActivations: lambda task: _no_operation,
            ReceiveGradients: lambda task: _no_operation,
            SendActivations: lambda task: self._send(task, task.runtime.output_sender),
            SendGradients: lambda task: self._send(task, task.runtime.gradient_sender),
            Forward: self._forward,
            Recompute: self._compute_outputs,
            Backward: self._backward,
            InputGradient: self._input_gradient,
            WeightGradient: self._weight_gradient,
            ReduceGradients: self._reduce,
            Update: self._update,
            Barrier: lambda task: lambda minibatch: self._grid.world.barrier(),
        }

    def begin(self, minibatches: Sequence[Minibatch]) -> None:
        """Begin to train on consecutive minibatches: the program of one for each of them, or that of all.

        `gradient` and `update` follow for each, in their order; all are collective over the grid.
        """
        self._walk = None
        if self._program.schedule.minibatches > 1:
            self._begin(minibatches)
            self._walk, self._left = self._operations_of(minibatches), len(minibatches)

    def gradient(self, minibatch: Minibatch) -> None:
        """Complete the gradients of the next minibatch; the passes of later ones may precede its update."""
        if self._walk is not None:
            self._update_next = self._advance()
            return
        if self._has_messages:
            self._begin([minibatch])
        gradient, self._update_next = self._steps.get(minibatch.size) or self._compile_step(minibatch.size)
        for operation in gradient:
            operation(minibatch)

    def update(self, minibatch: Minibatch) -> None:
        """Update the weights with the gradients that `gradient` has completed."""
        for operation in self._update_next:
            operation(minibatch)
        if self._walk is not None:
            self._left -= 1
            if self._left:
                return
            self._advance()  # what follows the last update
        if self._has_messages:
            self.finish()

    def _advance(self) -> list[Operation]:
        """Execute the operations up to the next update, which is returned."""
        assert self._walk is not None
        for instruction, operation, minibatch in self._walk:
            if isinstance(instruction, Update):
                return [operation]
            operation(minibatch)
        return []

    def _operations_of(self, minibatches: Sequence[Minibatch]) -> Iterator[tuple[Instruction, Operation, Minibatch]]:
        """The operations of the program of all minibatches, in order."""
        order = self._program.order
        for position, shift in self._program.walk(len(minibatches)):
            instruction = order[position]
            # A barrier has no minibatch: it may follow the last one.
            index = 0 if isinstance(instruction, Barrier) else instruction.minibatch + shift
            minibatch = minibatches[index]
            yield instruction, self._operation(position, minibatch.size), minibatch

    def forward(self, minibatches: Sequence[Minibatch], take_outputs: TakeOutputs) -> None:
        """Run forward passes only; collective over the grid. The last stage calls `take_outputs`: see `TakeOutputs`."""
        self._take_outputs = take_outputs
        self._begin(minibatches)
        for _, operation, minibatch in self._operations_of(minibatches):
            operation(minibatch)
        self.finish()
        self._take_outputs = None

    def _begin(self, minibatches: Sequence[Minibatch]) -> None:
        """Start the first receives."""
        rates = [minibatch.rate for minibatch in minibatches]
        for runtime in self._runtimes:
            runtime.begin(partial(self._messages, minibatches), rates)

    def finish(self) -> None:
        """Wait for all sends."""
        for runtime in self._runtimes:
            runtime.finish()

    def _messages(
        self, minibatches: Sequence[Minibatch], kind: type[Instruction], chunk: int
    ) -> Iterator[ExpectedMessage]:
        """Messages of a kind that a chunk receives, in order."""
        order = self._program.order
        for position, shift in self._program.walk(len(minibatches)):
            instruction = order[position]
            if type(instruction) is kind and instruction.chunk == chunk:
                minibatch = minibatches[instruction.minibatch + shift]
                samples = block_size(minibatch.size, self._microbatches, instruction.microbatch)
                yield (instruction, minibatch.number), samples

    # -- compilation -------------------------------------------------------------------------------------------------

    def _compile_step(self, size: int) -> tuple[list[Operation], list[Operation]]:
        """Operations of a schedule of one minibatch, before its update and from the update on."""
        order = self._program.order
        update = next(position for position, item in enumerate(order) if isinstance(item, Update))
        operations = [self._operation(position, size) for position in range(len(order))]
        parts = operations[:update], operations[update:]
        gradient, rest = ([operation for operation in part if operation is not _no_operation] for part in parts)
        self._steps[size] = gradient, rest
        return gradient, rest

    def _compile(self, position: int, size: int) -> Operation:
        """The operation of an instruction for minibatches of a size."""
        instruction = self._program.order[position]
        task = _Task(position, size, instruction, self._runtimes[instruction.chunk])
        operation, note = self._compilers[type(instruction)](task), self._note_weights
        if note is None or not isinstance(instruction, (Forward, Backward, InputGradient)):
            return operation
        weights = self._weights(task)

        def noted(minibatch: Minibatch) -> None:
            note(instruction, minibatch, task.runtime.chunk.parameters if weights is None else weights())
            operation(minibatch)

        return noted

    def _load(self, task: _Task) -> Operation:
        schedule, place = self._program.schedule, (self._program.stage, task.instruction.chunk)
        start, stop = block_bounds(task.size, self._microbatches, task.instruction.microbatch)
        arrays = self._arrays(task)
        x = arrays.samples if schedule.is_first(*place) else None
        y = arrays.targets if schedule.is_last(*place) and self._labels is not None else None

        def load(minibatch: Minibatch) -> None:
            minibatch.load(minibatch.samples, start, stop, x, y)

        return load

    def _send(self, task: _Task, sender: Sender | None) -> Operation:
        assert sender is not None
        instruction = task.instruction
        return lambda minibatch: sender.send((instruction, minibatch.number))

    def _forward(self, task: _Task) -> Operation:
        arrays, compute, samples = self._arrays(task), self._compute_outputs(task), self._samples(task)
        receiver, sender = task.runtime.input_receiver, task.runtime.output_sender
        is_output = self._is_last(task) and not self._program.trains
        if receiver is None and sender is None and not is_output:
            return compute

        def forward(minibatch: Minibatch) -> None:
            if receiver is not None:
                receiver.receive(arrays.input)
            compute(minibatch)
            if sender is not None:
                sender.pack(arrays.outputs, samples)
            elif is_output:
                assert self._take_outputs is not None
                self._take_outputs(minibatch, arrays)

        return forward

    def _compute_outputs(self, task: _Task) -> Operation:
        return self._timed(task, self._pass(task, task.runtime.chunk.forward))

    def _pass(self, task: _Task, compute: Callable[..., None], **options: Any) -> Callable[[], None]:
        """A pass of a chunk over the arrays of a task, with the weights that it reads."""
        arrays, weights = self._arrays(task), self._weights(task)
        if weights is None:
            return partial(compute, arrays, **options)
        return lambda: compute(arrays, weights(), **options)

    def _timed(self, task: _Task, work: Callable[[], None], name: str = "") -> Operation:
        """An operation whose time is recorded, by default as that of its instruction."""
        end_compute, instruction = self._grid.recorder.end_compute, task.instruction
        name = name or instruction.name

        def timed(minibatch: Minibatch) -> None:
            start = perf_counter()
            work()
            end_compute(name, start, (instruction, minibatch.number))

        return timed

    def _backward(self, task: _Task) -> Operation:
        return self._backward_pass(task, task.runtime.chunk.backward, **self._gradient_options(task))

    def _input_gradient(self, task: _Task) -> Operation:
        runtime, copy_layer = task.runtime, None
        if runtime.concatenated is not None:
            first, samples = self._columns(task)
            copy_layer = partial(runtime.concatenated.copy_layer, first=first, samples=samples)
        return self._backward_pass(task, runtime.chunk.input_gradient, done=copy_layer)

    def _backward_pass(self, task: _Task, work: Callable[..., None], **options: Any) -> Operation:
        """Operation of a backward pass: receive the output gradient or compute the loss; pack the input gradient."""
        arrays, samples = self._arrays(task), self._samples(task)
        receiver, sender = task.runtime.gradient_receiver, task.runtime.gradient_sender
        begin = self._loss_of(task) if self._is_last(task) else _no_operation  # the next chunk here has written it
        if receiver is not None:
            begin = lambda _: receiver.receive(arrays.output_gradient)  # noqa: E731
        compute = self._timed(task, self._pass(task, work, **options))

        def backward(minibatch: Minibatch) -> None:
            begin(minibatch)
            compute(minibatch)
            if sender is not None:
                assert arrays.input_gradient is not None
                sender.pack(arrays.input_gradient, samples)

        return backward

    def _loss_of(self, task: _Task) -> Operation:
        """Operation that computes the loss of a microbatch and adds it to that of earlier ones."""
        assert self._loss is not None
        chunk, addend = task.runtime.chunk, task.runtime.loss
        is_first = task.position in self._program.first_backward
        compute = partial(self._loss, self._arrays(task), task.size, chunk.loss if is_first else addend)

        def add_loss() -> None:
            compute()
            chunk.kernels.add(chunk.loss, addend, chunk.loss)

        return self._timed(task, compute if is_first else add_loss, "loss")

    def _weight_gradient(self, task: _Task) -> Operation:
        if task.instruction.microbatch == ALL_MICROBATCHES:
            assert task.runtime.concatenated is not None
            layers: Sequence[WeightGradientArrays] = task.runtime.concatenated.layers(self._columns(task)[1])
        else:
            layers = self._arrays(task).layers
        weight_gradient, options = task.runtime.chunk.weight_gradient, self._gradient_options(task)
        return self._timed(task, partial(weight_gradient, layers, **options))

    def _gradient_options(self, task: _Task) -> dict[str, bool]:
        """Whether a pass adds to the gradients of earlier microbatches, and whether their all-reduce follows it."""
        program, position = self._program, task.position
        reduces = self._grid.batch > 1 and position in program.reducing
        return {"accumulate": position in program.accumulating, "reduce": reduces}

    def _reduce(self, task: _Task) -> Operation:
        if self._grid.batch == 1:
            return _no_operation
        finishes = [runtime.chunk.replica.finish for runtime in self._runtimes]

        def finish_reductions(minibatch: Minibatch) -> None:
            for finish in finishes:
                finish()

        return finish_reductions

    def _update(self, task: _Task) -> Operation:
        kept, delay = self._program.kept[task.position], self._program.delays[task.position]
        updates = [partial(runtime.weights.update, kept=kept, delay=delay) for runtime in self._runtimes]
        end_compute, instruction = self._grid.recorder.end_compute, task.instruction

        def update(minibatch: Minibatch) -> None:
            start = perf_counter()
            for update_chunk in updates:
                update_chunk(minibatch.rate)
            end_compute(instruction.name, start, (instruction, minibatch.number))

        return update

    # -- sizes, arrays and weights -----------------------------------------------------------------------------------

    def _samples(self, task: _Task) -> int:
        """Samples of a microbatch, over all ranks."""
        return block_size(task.size, self._microbatches, task.instruction.microbatch)

    def _own_samples(self, samples: int) -> int:
        return block_size(samples, self._grid.batch, self._grid.batch_rank)

    def _columns(self, task: _Task) -> tuple[int, int]:
        """First column of a microbatch's block within this rank's columns of the minibatch, and their total number."""
        count = self._microbatches
        own = [self._own_samples(block_size(task.size, count, number)) for number in range(count)]
        firsts = list(accumulate(own, initial=0))
        return firsts[max(task.instruction.microbatch, 0)], firsts[-1]

    def _is_last(self, task: _Task) -> bool:
        return self._program.schedule.is_last(self._program.stage, task.instruction.chunk)

    def _arrays(self, task: _Task) -> StageArrays:
        """Arrays of an instruction's microbatch, with the activations that the instruction computes or uses."""
        program, instruction, runtime = self._program, task.instruction, task.runtime
        is_pass = isinstance(instruction, (Forward, Recompute))
        computed_by = instruction if is_pass else program.last_pass(instruction)
        return runtime.workspace.arrays(
            self._own_samples(self._samples(task)),
            program.memory.input_slots[instruction.part],
            program.memory.activation_slots[computed_by],
            self._labels,
        )

    def _weights(self, task: _Task) -> Callable[[], Sequence[LayerParameters]] | None:
        """Function that returns the parameters for a pass; None for the current ones."""
        age, ahead = self._program.reads[task.position]
        return None if age == ahead == 0 else partial(task.runtime.weights.read, age, ahead)


def _no_operation(minibatch: Minibatch) -> None:
    pass
