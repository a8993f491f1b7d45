"""Which layers a stage owns."""
