"""What `hybridnn doctor` looks at: a small file for each kind of check, and the round that calls them on every rank."""
