"""Calls and trainings of A6."""
