"""Adapters for training frameworks: each file needs its own package, which ``import pogm`` does not import."""
