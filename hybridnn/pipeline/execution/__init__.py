"""Schedules carried out over MPI."""
