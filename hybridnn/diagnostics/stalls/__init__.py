"""Jobs that stand still: a watch on every rank, what each rank says it waits for, and who did not arrive."""
