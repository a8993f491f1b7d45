"""Layers, losses, initial weights, optimizers and learning-rate schedules, without MPI."""
