"""Settings of a run, their file, and the objects they build."""
