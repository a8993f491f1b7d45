"""Calls and trainings of A1."""
