"""A1, a dense layer by hand: forward, backward, finite differences, and the update of the weights."""
