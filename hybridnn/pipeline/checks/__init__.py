"""What can be said of a schedule without running it: lint, simulation in unit time, staleness."""
