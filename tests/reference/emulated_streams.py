"""Streams, events, captures and graphs of the emulated GPU, with the errors that CUDA raises.

Work in a stream is executed when the program waits for an event or the stream; a query executes one piece of work. So
a program that reads device memory or pinned memory too early gets old values, and memory that is reused too early is
overwritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakValueDictionary, finalize, ref

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from reference.emulated_device import EmulatedCupy

FREED = 0xFF
"""Bytes of memory that is free or not written yet: NaN, and -1."""


class Stream:
    """Queue of work and of events of other streams to wait for; during a capture, it records instead.

    A `device` can make it the current stream.
    """

    def __init__(self, device: EmulatedCupy | None = None) -> None:
        self._work: deque[Callable[[], None] | Event] = deque()
        self._device, self._before = device, self
        self.capture: Capture | None = None
        self.given = self.done = 0
        self.ptr = id(self)

    def __enter__(self) -> Stream:
        assert self._device is not None
        self._before, self._device.current = self._device.current, self
        return self

    def __exit__(self, *_: object) -> None:
        assert self._device is not None
        self._device.current = self._before

    def enqueue(self, work: Callable[[], None] | Event) -> None:
        if self.capture is not None:
            self.capture.lines[self].append(work)
            return
        self._work.append(work)
        self.given += 1

    def free(self, memory: NDArray[np.uint8]) -> None:
        """Overwrite memory after the work that was enqueued before: the pool gives it to the next array."""
        self._work.append(partial(memory.fill, FREED))
        self.given += 1

    def wait_event(self, event: Event) -> None:
        if event.capture is None:
            refuse(self.capture is not None, "a captured stream waits for an event outside the capture")
        else:
            refuse(event.capture.ended, "the capture of the event has ended")
            refuse(self.capture not in (None, event.capture), "one stream in two captures")
            event.capture.join(self)
        self.enqueue(event.now())

    def begin_capture(self) -> None:
        refuse(self.capture is not None, "the stream is being captured")
        self.capture = Capture(self)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def end_capture(self) -> Graph:
        capture = self.capture
        refuse(capture is None or capture.origin is not self, "no capture began with this stream")
        assert capture is not None
        assert self._device is not None
        capture.end()
        graph = Graph(capture, self._device)
        capture.graph = ref(graph)
        return graph

    def step(self) -> None:
        """Execute the next piece of work, or of the stream that it waits for."""
        first = self._work[0]
        if isinstance(first, Event) and not first.reached:
            first.stream.step()
            return
        self._work.popleft()
        self.done += 1
        if not isinstance(first, Event):
            first()

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for a stream during a capture")
        while self._work:
            self.step()


class Event:
    stream: Stream
    until: int
    capture: Capture | None = None

    known: ClassVar[WeakValueDictionary[int, Event]] = WeakValueDictionary()

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.ptr = id(self)
        self.known[self.ptr] = self

    def record(self, stream: Stream) -> None:
        self.stream, self.until, self.capture = stream, stream.given, stream.capture
        if self.capture is not None:
            self.until = len(self.capture.lines[stream])

    def now(self) -> Event:
        """A copy of the event in its current state."""
        event = Event()
        event.stream, event.until, event.capture = self.stream, self.until, self.capture
        return event

    @property
    def reached(self) -> bool:
        return self.stream.done >= self.until

    @classmethod
    def query(cls, ptr: int) -> int:
        """``cudaEventQuery``."""
        event = cls.known[ptr]
        refuse(event.capture is not None, "a captured event cannot be queried")
        if event.reached:
            return 0
        event.stream.step()  # progress of the device
        return 600

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for a captured event")
        while not self.reached:
            self.stream.step()


class Capture:
    """Recorded work of all streams that take part, and the events between them.

    It raises the errors of CUDA (CUDA C++ Programming Guide, "Cross-stream Dependencies and Events" and "Prohibited
    and Unhandled Operations").
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.lines: dict[Stream, list[Callable[[], None] | Event]] = {origin: []}
        self.ended = False
        self.graph: Callable[[], Graph | None] = lambda: None

    def join(self, stream: Stream) -> None:
        stream.capture = self
        self.lines.setdefault(stream, [])

    def end(self) -> None:
        for stream in self.lines:
            stream.capture = None
        self.ended = True
        waited_for, looked_at = {self.origin: len(self.lines[self.origin])}, -1
        while sum(waited_for.values()) != looked_at:
            looked_at = sum(waited_for.values())
            for stream, until in list(waited_for.items()):
                for event in self.lines[stream][:until]:
                    if isinstance(event, Event):
                        waited_for[event.stream] = max(waited_for.get(event.stream, 0), event.until)
        unjoined = any(waited_for.get(stream, 0) < len(line) for stream, line in self.lines.items())
        refuse(unjoined, "the first stream does not wait for all captured streams")


class Graph:
    """Captured work, which can be launched in a stream."""

    def __init__(self, capture: Capture, device: EmulatedCupy) -> None:
        self._capture, self._device, self._number = capture, device, len(device.replays)
        device.replays.append(0)
        finalize(self, device.ended.append, "graph")

    def launch(self, stream: Stream) -> None:
        """Start copies of the captured streams after the work of `stream`, which waits for the first of them."""
        self._device.replays[self._number] += 1
        self._device.launches.append(("graph", (), ()))
        origin, lines = self._capture.origin, {line: Stream() for line in self._capture.lines}
        before = Event()
        before.record(stream)
        lines[origin].enqueue(before)
        for line, recorded in self._capture.lines.items():
            for work in recorded:
                if isinstance(work, Event):
                    event = Event()
                    event.stream, event.until = lines[work.stream], work.until + (work.stream is origin)
                    lines[line].enqueue(event)
                else:
                    lines[line].enqueue(work)
        after = Event()
        after.record(lines[origin])
        stream.enqueue(after)


def refuse(condition: bool, message: str) -> None:
    if condition:
        raise CudaError(message)


class CudaError(RuntimeError):
    """An error of CUDA or of CuPy."""
