"""What a run has trained, put to use: its weights evaluated, exported, and asked for predictions."""
