"""System calls that are refused to the processes of a submission.

Keys, message queues and memory of System V stay in the kernel without a file and without a process: a case could leave
them to the next one, and a submission to the next one. Locks, leases and notifications of a file are seen by all that
can read the file, so that ranks could exchange data. File systems of its own would hold memory that no limit counts.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
LOAD, EQUAL, AT_LEAST, ABOVE, RETURN = 0x20, 0x15, 0x35, 0x25, 0x06  # operations of the kernel's packet filters
NUMBER, MACHINE, SECOND_ARGUMENT = 0, 4, 24  # places in what the kernel tells of a call
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | errno.EPERM
OTHER_TABLE = (0x40000000, 0xFFFFFFFF)  # numbers of the same calls in another table

CALLS = {
    "x86_64": (
        0xC000003E,
        (
            (29, 31),
            (64, 71),
            (73, 73),
            (165, 166),
            (220, 220),
            (240, 245),
            (248, 250),
            (253, 255),
            (272, 272),
            (294, 294),
            (300, 301),
            (308, 308),
            (428, 432),
        ),
        72,
    ),
    "aarch64": (
        0xC00000B7,
        ((26, 28), (32, 32), (39, 40), (97, 97), (180, 197), (217, 219), (262, 263), (268, 268), (428, 432)),
        25,
    ),
}
"""By machine: its number, the first and last number of refused calls, and the number of ``fcntl``."""

LOCKS = ((5, 7), (36, 38), (1024, 1026))  # operations of fcntl, leases and notifications among them

Instruction = tuple[int, int, int, int]  # operation, instructions to skip if it holds, and if not, and its operand


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_calls() -> bool:
    """Refuse the calls to this process, which has given up new rights, and all that it starts; False where none can."""
    if platform.machine() not in CALLS:
        return False
    packed = [struct.pack("HBBI", *instruction) for instruction in _instructions(*CALLS[platform.machine()])]
    program = _Program(len(packed), b"".join(packed))
    failed: int = ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    return not failed


def _instructions(machine: int, refused: tuple[tuple[int, int], ...], fcntl: int) -> Iterator[Instruction]:
    yield LOAD, 0, 0, MACHINE
    yield EQUAL, 1, 0, machine
    yield RETURN, 0, 0, REFUSED
    yield LOAD, 0, 0, NUMBER
    for numbers in (OTHER_TABLE, *refused):
        yield from _refusal(*numbers)
    yield EQUAL, 1, 0, fcntl
    yield RETURN, 0, 0, ALLOWED
    yield LOAD, 0, 0, SECOND_ARGUMENT
    for numbers in LOCKS:
        yield from _refusal(*numbers)
    yield RETURN, 0, 0, ALLOWED


def _refusal(first: int, last: int) -> Iterator[Instruction]:
    """Refuse the call if the loaded number is from `first` to `last`."""
    yield AT_LEAST, 0, 2, first
    yield ABOVE, 1, 0, last
    yield RETURN, 0, 0, REFUSED
