"""Folders of images: listed, decoded safely, remembered by content, cached as one file of pixels, checked."""
