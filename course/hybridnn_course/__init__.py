"""The class kit: assignments, their checks, and the grading of submissions."""
