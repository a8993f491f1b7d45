"""Checks of a schedule without running it: lint, deadlock, simulation in unit time, staleness."""
