"""Datasets, published sources, image folders and transforms."""
