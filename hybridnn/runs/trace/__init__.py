"""What a run recorded: its breakdown and its picture."""
