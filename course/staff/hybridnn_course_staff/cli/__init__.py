"""`hybridnn course`: the commands of the staff."""
