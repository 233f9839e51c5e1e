"""Folders of images: list them, decode them safely, index them by content, cache their pixels, check them."""
