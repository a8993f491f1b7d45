"""Training by the book: one process, float64, samples first, no regard for speed. It imports nothing from hybridnn."""
