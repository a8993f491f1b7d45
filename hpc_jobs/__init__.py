"""Slurm batch scripts and machine files: package data, which users copy and edit."""
