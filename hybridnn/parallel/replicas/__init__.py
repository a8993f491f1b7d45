"""Replicas of a stage's parameters, gradients and optimizer state."""
