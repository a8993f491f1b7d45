"""Benchmarks that compare hybridnn with PyTorch and scikit-learn, by ratios and medians of alternating runs."""
