"""Stall watchdog: states of the ranks, diagnosis and report of a job without progress."""
