"""Slurm batch scripts, study files and machine files: package data, which users copy and edit."""
