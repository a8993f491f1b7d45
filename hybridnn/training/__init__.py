"""Training: trainer, engine, devices, data splits, metrics and records."""
