"""Slurm batch scripts and study definitions, installed as package data to be copied and edited."""
