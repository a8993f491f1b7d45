"""What a machine can do, as measured or as written by hand."""
