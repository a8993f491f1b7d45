"""Assignments of the class kit; a package for each."""
