"""Progress of runs and sweeps on a terminal, the time left, and estimates of a plan."""
