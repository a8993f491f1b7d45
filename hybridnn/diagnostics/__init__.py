"""What ends a job that fails or stalls, and says why: fail-safe, watchdogs, rank states. Hosts, and their load."""
