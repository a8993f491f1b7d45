"""Programs that Slurm batch scripts call; ``python -m hybridnn.batch_jobs`` prints the folder of the scripts."""
