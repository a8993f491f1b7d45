"""A4: model parallelism; layers split by outputs and by inputs, and what their ranks send."""
