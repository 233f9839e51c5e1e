"""Trains one group of like trials on one machine."""
