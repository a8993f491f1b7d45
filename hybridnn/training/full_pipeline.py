"""Training by an asynchronous method whose pipeline stays full between the epochs of a `fit` (``drain = "end"``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import overload

from hybridnn.pipeline.execution.executor import Executor, Minibatch


class EpochSequence(Sequence[Minibatch]):
    """The minibatches of several epochs, which are made when they are used.

    Parameters
    ----------
    make : callable
        Returns the minibatches of an epoch, by its number in the sequence from 0. Not collective, as every stage calls
        it when its first pass of the epoch comes.
    epochs, epoch : int
        Number of epochs, and of the minibatches of each.
    stages : int
        Stages of the pipeline, which has minibatches of so many epochs at a time.
    """

    def __init__(self, make: Callable[[int], list[Minibatch]], epochs: int, epoch: int, stages: int) -> None:
        self.epoch, self._epochs = epoch, epochs
        self.of_epoch = lru_cache(stages // epoch + 2)(make)

    def __len__(self) -> int:
        return self._epochs * self.epoch

    @overload
    def __getitem__(self, index: int) -> Minibatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Minibatch]: ...
    def __getitem__(self, index: int | slice) -> Minibatch | list[Minibatch]:
        """Minibatches by their numbers in the sequence."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.of_epoch(index // self.epoch)[index % self.epoch]


class FullPipeline:
    """A training over several epochs, which stops between two epochs for evaluation and checkpoints.

    Between two epochs every stage has done its updates of all minibatches of the first one, and no other update. Its
    later minibatches are in flight: passes of them have been computed with the weights that the method defines.
    """

    def __init__(self, executor: Executor, minibatches: EpochSequence, task: str) -> None:
        self.executor, self.minibatches, self.task = executor, minibatches, task
        self._training = executor.train(minibatches, minibatches.epoch)
        self._next: Minibatch | None = None
        self.done = 0  # minibatches of completed epochs
        self.is_between_epochs = False

    def train_epoch(self) -> Iterator[Minibatch]:
        """Do the updates of an epoch; yields each minibatch when its gradients are complete. Collective."""
        self.is_between_epochs = False
        if self._next is None:
            self._next = next(self._training)
        for _ in range(self.minibatches.epoch):
            assert self._next is not None
            yield self._next
            self._next = next(self._training, None)  # its update, up to the next gradient
        self.done += self.minibatches.epoch
        self.is_between_epochs = self._next is not None

    @property
    def entered(self) -> int:
        """Minibatches that have entered the pipeline."""
        return self.executor.entered(self.done, len(self.minibatches))

    def drain(self, executor: Executor) -> None:
        """Complete the minibatches in flight between two epochs, by an executor for those that have entered."""
        executor.drain(self.minibatches, self.entered, self.minibatches.epoch, self.executor.walked)
