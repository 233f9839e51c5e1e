"""Trained models: load, apply, evaluate, export and describe them."""
