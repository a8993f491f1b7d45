"""What ends a job that fails or stalls: fail-safe, stall watchdog, comparison of collectives."""
