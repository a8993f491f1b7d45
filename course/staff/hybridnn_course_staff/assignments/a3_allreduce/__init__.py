"""A3, an all-reduce from messages: collectives round a ring, built from sends and receives."""
