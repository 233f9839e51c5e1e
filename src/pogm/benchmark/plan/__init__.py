"""What to run: trials, sweeps and random search."""
