"""What a group refuses before anything is sent, beside what `require_buffer` does."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.mpi import require_buffer

__all__ = ["require_root_array", "require_shape"]


def require_root_array(what: str, array: NDArray[Any] | None, part: NDArray[Any], rows: int) -> NDArray[Any]:
    """The root's `array`, if it is `rows` rows like those of `part`.

    Raises
    ------
    ValueError
        If there is none, or its shape is another.
    TypeError
        If its dtype is another.
    """
    if array is None:
        raise ValueError(f"{what}: the root needs the whole array")
    require_buffer(array, what, part.dtype)
    require_shape(what, array, (rows, *part.shape[1:]))
    return array


def require_shape(what: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape.

    Raises
    ------
    ValueError
        Naming both shapes.
    """
    if array.shape != shape:
        raise ValueError(f"{what}: expected an array of shape {shape}, got {array.shape}")
