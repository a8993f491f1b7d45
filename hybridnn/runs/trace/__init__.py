"""Traces of runs: file, epochs, breakdown of time, drawing."""
