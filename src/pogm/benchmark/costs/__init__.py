"""Costs of runs: reference costs, costs of finished runs, and whether compilation pays off."""
