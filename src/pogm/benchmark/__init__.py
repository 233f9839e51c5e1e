"""Benchmarks: plan trials, run them, and compare their results."""
