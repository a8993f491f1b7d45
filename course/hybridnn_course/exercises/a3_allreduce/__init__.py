"""Calls and trainings of A3."""
