"""Calibration: the coefficients of a machine, fitted to measurements."""
