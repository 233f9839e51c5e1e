"""Stored images to what a network sees: whole batches at once, on the device, random numbers from keys."""
