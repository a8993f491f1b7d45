"""Frames between the grader and the processes that run a submission, and in files: JSON and the bytes of arrays.

A frame is a header of two lengths, a JSON text, and the arrays one after the other. Objects are never unpickled: what a
submission can send is text, numbers and arrays of a few types.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct(">II")
FRAME_BYTES = 64 << 20
TEXT_BYTES = 4 << 20  # of the JSON, whose objects take many times as much memory
MOST_AXES = 32
MOST_ARRAYS = 1000
DTYPES = ("float64", "float32", "int64", "int32", "uint8", "bool")


class FrameError(Exception):
    """The other side closed the connection, or sent what is not a frame."""


class FrameTimeoutError(FrameError):
    """No frame arrived in time."""


def packed(values: Mapping[str, Any]) -> bytes:
    """A frame of values; `FrameError` where they contain other objects than a frame may."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_encoded(dict(values), arrays), allow_nan=True).encode()
    size = sum(array.nbytes for array in arrays)
    if len(text) > TEXT_BYTES or len(text) + size > FRAME_BYTES:
        raise FrameError(
            f"{len(text):,} bytes of values and {size:,} of arrays; at most {TEXT_BYTES:,}, together {FRAME_BYTES:,}"
        )
    return HEADER.pack(len(text), size) + text + b"".join(array.tobytes() for array in arrays)


def unpacked(data: bytes) -> Iterator[dict[str, Any]]:
    """The values of frames one after the other; `FrameError` where they are none."""
    while data:
        if len(data) < HEADER.size:
            raise FrameError("not a frame")
        length, size = HEADER.unpack(data[: HEADER.size])
        end = HEADER.size + length + size
        if len(data) < end:
            raise FrameError("not a whole frame")
        yield _values(data[HEADER.size : HEADER.size + length], data[HEADER.size + length : end])
        data = data[end:]


def send_frame(connection: socket.socket, values: Mapping[str, Any]) -> None:
    """Send values; `FrameError` where they contain other objects than a frame may, or the other side is gone."""
    frame = packed(values)
    try:
        connection.sendall(frame)
    except OSError as error:
        raise FrameError(str(error)) from error


def receive_frame(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next values; `FrameTimeoutError` at the `deadline`, a moment of the monotonic clock."""
    length, size = HEADER.unpack(_receive(connection, HEADER.size, deadline))
    if length > TEXT_BYTES or length + size > FRAME_BYTES:
        raise FrameError(f"a frame of {length + size:,} bytes")
    return _values(_receive(connection, length, deadline), _receive(connection, size, deadline))


def _values(text: bytes, data: bytes) -> dict[str, Any]:
    if text.count(b'"__array__"') > MOST_ARRAYS:
        raise FrameError(f"more than {MOST_ARRAYS:,} arrays")
    try:
        decoded, used = _decoded(json.loads(text), data, 0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"not a frame: {error}") from error
    if used != len(data) or not isinstance(decoded, dict):
        raise FrameError("not a frame")
    return decoded


def _receive(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        remaining = None if deadline is None else deadline - monotonic()
        if remaining is not None and remaining <= 0:
            raise FrameTimeoutError
        connection.settimeout(remaining)
        try:
            part = connection.recv(min(count - len(parts), 1 << 20))
        except TimeoutError:
            raise FrameTimeoutError from None
        except OSError as error:
            raise FrameError(str(error)) from error
        if not part:
            raise FrameError("the connection was closed")
        parts += part
    return bytes(parts)


def _encoded(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        # The class of the array and its methods may be the student's: only its memory is read.
        array = np.ascontiguousarray(np.asarray(value).view(np.ndarray))
        if array.dtype.name not in DTYPES:
            raise FrameError(f"an array of {array.dtype}: outputs are of {', '.join(DTYPES)}")
        arrays.append(array)
        if len(arrays) > MOST_ARRAYS:
            raise FrameError(f"more than {MOST_ARRAYS:,} arrays")
        return {"__array__": [array.dtype.name, list(np.shape(value))]}
    if isinstance(value, dict):
        return {str(key): _encoded(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item, arrays) for item in value]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise FrameError(f"an output of type {type(value).__name__}")


def _decoded(value: Any, data: bytes, at: int) -> tuple[Any, int]:
    if isinstance(value, dict):
        if "__array__" in value:
            return _decoded_array(value["__array__"], data, at)
        items = {}
        for key, item in value.items():
            items[key], at = _decoded(item, data, at)
        return items, at
    if isinstance(value, list):
        values = []
        for item in value:
            one, at = _decoded(item, data, at)
            values.append(one)
        return values, at
    return value, at


def _decoded_array(described: Any, data: bytes, at: int) -> tuple[NDArray[Any], int]:
    name, shape = described
    sizes_fit = len(shape) <= MOST_AXES and all(type(size) is int and 0 <= size <= FRAME_BYTES for size in shape)
    if name not in DTYPES or not sizes_fit:
        raise ValueError("an array")
    dtype = np.dtype(name)
    count = 1
    for size in shape:
        count *= size
    end = at + count * dtype.itemsize
    if end > len(data):
        raise ValueError("an array that is too short")
    return np.frombuffer(data, dtype, count, at).reshape(shape).copy(), end
