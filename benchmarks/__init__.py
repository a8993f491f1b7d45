"""Times this package beside its peers: alternating runs in one process, ratios and medians, never a pass or fail."""
