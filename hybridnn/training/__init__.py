"""Trainer, history, metrics: ties everything below together."""
