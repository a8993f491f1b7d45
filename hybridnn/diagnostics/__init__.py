"""What ends a job that fails or stalls, and says why: fail-safe, watchdogs, diagnosis of the states of all ranks."""
