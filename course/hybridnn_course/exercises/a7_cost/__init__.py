"""Calls and trainings of A7."""
