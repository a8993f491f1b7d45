"""How the arrays of a group travel: as they are, through pinned host memory, by device-aware MPI, or by NCCL."""
