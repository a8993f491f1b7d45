"""All ranks in one process: repeatable runs without an MPI library, with a diagnosis of deadlocks."""

from hybridnn.in_process.communication_errors import CommunicationError, DeadlockError, StuckError
from hybridnn.in_process.records import Message
from hybridnn.in_process.runner import RunResult, run_ranks

__all__ = ["CommunicationError", "DeadlockError", "Message", "RunResult", "StuckError", "run_ranks"]
