"""Execution of pipeline schedules over MPI."""
