"""Use of the weights of a run: evaluation, prediction and export."""
