"""Calls and trainings of A5."""
