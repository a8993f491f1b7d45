"""A7, cost models: alpha and beta from measurements, counts of collectives, partitions and grids."""
