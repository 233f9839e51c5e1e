"""What the paper measures on a run, without touching it."""
