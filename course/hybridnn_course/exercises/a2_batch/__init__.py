"""Calls and trainings of A2."""
