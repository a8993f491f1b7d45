"""Drawings of schedules, planned and measured: text, SVG, PNG."""
