"""A program of its own, as it may crash: send an array that lies on a GPU through MPI, from this process to itself.

``python -m hybridnn.comm.device_probe``; exit code 0 if the array arrives.
"""

from __future__ import annotations

import sys

from hybridnn.comm.mpi import import_mpi

__all__ = ["array_arrives"]

ELEMENTS = 1 << 18
"""A megabyte: small messages are copied in another way than large ones."""


def array_arrives() -> bool:
    """Whether MPI delivers what it is given in GPU memory."""
    import cupy

    mpi = import_mpi()
    sent, received = cupy.arange(ELEMENTS, dtype=cupy.float32), cupy.zeros(ELEMENTS, dtype=cupy.float32)
    cupy.cuda.get_current_stream().synchronize()  # MPI knows nothing of streams
    mpi.COMM_SELF.Sendrecv(sent, 0, 0, received, 0, 0)
    return bool((sent == received).all())


if __name__ == "__main__":
    if not array_arrives():
        sys.exit("the array arrived with other values than were sent")
