"""Transforms from stored images to network inputs: whole batches on the device, random numbers from keys."""
