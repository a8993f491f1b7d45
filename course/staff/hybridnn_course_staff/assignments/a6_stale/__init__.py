"""A6, stale weights: the weights that asynchronous pipelines read, how they are kept, and how they are predicted."""
