"""What ends a job that fails or stalls: fail-safe, stall watchdog, lost ranks, comparison of collectives."""
