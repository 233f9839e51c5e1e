"""Measurements of `speed.py`: one file per row of its table, and shared code."""
