"""Calls and trainings of A4."""
