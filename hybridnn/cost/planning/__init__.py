"""Which layout is the best."""
