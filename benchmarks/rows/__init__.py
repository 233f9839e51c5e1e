"""What `speed.py` measures: one row of its table per file, and what they share."""
