"""Communication: groups with collectives and messages, transports, the block partition, the recorder, launchers."""
