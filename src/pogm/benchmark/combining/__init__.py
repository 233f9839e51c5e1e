"""Combination of finished runs: weight soups and ensembles."""
