"""A2, batch parallelism: one gradient, whatever the number of ranks."""
