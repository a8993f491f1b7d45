"""One rank's part of a parallel training: process grid, split layers, gradient reduction, replicas, distribution."""
