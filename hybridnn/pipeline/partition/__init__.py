"""Partition of layers into stages, and profiles of layers."""
