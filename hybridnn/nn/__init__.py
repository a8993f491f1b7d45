"""Layers, losses, initial weights, optimizers, learning-rate schedules and the arithmetic of NumPy, without MPI."""
