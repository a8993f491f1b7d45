"""Frames carry values, and nothing else: no objects, no pickles, no sizes that the other side invents."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hybridnn_course.answers import first_difference
from hybridnn_course.frames import (
    DTYPES,
    FRAME_BYTES,
    HEADER,
    TEXT_BYTES,
    FrameError,
    FrameTimeoutError,
    receive_frame,
    send_frame,
)

ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda name: arrays(np.dtype(name), array_shapes(min_dims=0, min_side=0, max_side=4))
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@given(st.dictionaries(st.text(max_size=5).filter(lambda name: name != "__array__"), VALUES, max_size=4))
def test_values_arrive_as_they_were_sent(values: dict[str, Any]) -> None:
    one, other = socket.socketpair()
    with one, other:
        send_frame(one, values)
        received = receive_frame(other, time.monotonic() + 60)
    assert _bits(received) == _bits(values)


def _bits(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bits(item) for item in value]
    return value


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", 1j, np.zeros(2, object), np.zeros(2, "U3"), np.zeros(2, complex), lambda: 0]
)
def test_other_objects_are_not_sent(pair: tuple[socket.socket, socket.socket], value: object) -> None:
    with pytest.raises(FrameError):
        send_frame(pair[0], {"outputs": value})


def test_the_memory_of_an_array_is_sent_whatever_its_class_says(pair: tuple[socket.socket, socket.socket]) -> None:
    class Liar(np.ndarray):
        def tobytes(self, order: Any = "C") -> bytes:
            return b"\0" * self.nbytes

    send_frame(pair[0], {"array": np.arange(3.0).view(Liar)})
    assert receive_frame(pair[1])["array"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(FRAME_BYTES, 1),
        HEADER.pack(0xFFFFFFFF, 0xFFFFFFFF),
        HEADER.pack(3, 0) + b"{x}",
        HEADER.pack(2, 0) + b"[]",
        HEADER.pack(2, 1) + b"{}x",
        HEADER.pack(40, 0) + b'{"a": {"__array__": ["object", [1]]}}   ',
        HEADER.pack(40, 0) + b'{"a": {"__array__": ["float64", [1]]}}  ',
        HEADER.pack(40, 8) + b'{"a": {"__array__": ["float64", [-1]]}} ' + bytes(8),
        HEADER.pack(30, 0) + b'{"a": {"__array__": "float64"}}'[:30],
        HEADER.pack(62, 8) + b'{"a": {"__array__": ["float64", [1000000, 1000000, 1000000]]}}' + bytes(8),
        HEADER.pack(6000, 0) + b'{"a":' + b"[" * 5995,
        HEADER.pack(6006, 0) + b'{"a":' + b"1" * 6000 + b"}",
    ],
)
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(FrameError):
        receive_frame(pair[1], time.monotonic() + 60)


def test_long_texts_are_refused_by_both_sides(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(FrameError, match=r"bytes of values and 0 of arrays; at most 4,194,304"):
        send_frame(pair[0], {"x": "a" * TEXT_BYTES})
    pair[0].sendall(HEADER.pack(TEXT_BYTES + 1, 0))
    with pytest.raises(FrameError, match=r"a frame of 4,194,305 bytes"):
        receive_frame(pair[1], time.monotonic() + 60)


def test_silence_and_a_closed_connection_are_errors(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0")
    with pytest.raises(FrameTimeoutError):
        receive_frame(pair[1], time.monotonic() + 0.05)
    pair[0].close()
    with pytest.raises(FrameError, match="closed"):
        receive_frame(pair[1])


@pytest.mark.parametrize(
    ("own", "right", "text"),
    [
        (1, 1.0, None),
        (True, 1, "yours True"),
        (1.0, 1, "yours 1.0"),
        ([1, 2], [1, 2, 3], "yours [1, 2]"),
        (np.zeros(2), np.zeros(3), "shape (2,)"),
        (np.zeros(2, np.float32), np.zeros(2), "float32"),
        (np.array([0.0, np.nan]), np.zeros(2), "element [1]: yours nan"),
        (np.array([1.0, 1 + 1e-12]), np.ones(2), None),
        (np.array([1, 2]), np.array([1, 3]), "element [1]: yours 2, expected 3"),
        ("x", np.zeros(1), "type str"),
        ({"a": 1}, {"a": 2}, "yours {'a': 1}"),
    ],
)
def test_differences_are_described(own: object, right: object, text: str | None) -> None:
    found = first_difference([{"x": own}], [{"x": right}], 1e-9)
    if text is None:
        assert found is None
    else:
        assert found is not None
        assert text in found.text
