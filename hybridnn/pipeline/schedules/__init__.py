"""Schedules of pipelines: lists of instructions for every stage, and the weights that they read."""
