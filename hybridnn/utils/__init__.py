"""Helpers without MPI: checks of numbers, files, texts, child processes."""
