"""Training of one trial, or of several similar trials at once, on one machine."""
