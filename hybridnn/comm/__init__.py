"""Process grid, groups with collectives, the block partition, the recorder, the fail-safe."""
