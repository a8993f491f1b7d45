"""Schedules on a model of a machine, for any number of ranks."""
