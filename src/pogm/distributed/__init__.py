"""Training one model in several processes."""
