"""Runs: their directories, the runner, selected models, and directories of sweeps."""
