"""Executors: trials in processes of this machine, on a Ray cluster, or as jobs of a Slurm cluster."""
