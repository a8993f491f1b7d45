"""Studies: many runs of one kind, what they cost, and what limits them."""
