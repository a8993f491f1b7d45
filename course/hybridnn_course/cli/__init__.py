"""`hybridnn course`: the class kit."""
