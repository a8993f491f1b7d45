"""A run and its folder: records, checkpoints, resume, reports, trained weights."""
