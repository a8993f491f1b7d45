"""Planning: the layouts of a number of ranks, and the fastest of them."""
