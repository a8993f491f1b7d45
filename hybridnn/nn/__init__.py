"""Layers, losses, initial weights, optimizers and learning-rate schedules of one process. No MPI."""
