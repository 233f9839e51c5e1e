"""Training of one model in several processes."""
