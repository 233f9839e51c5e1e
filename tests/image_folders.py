"""Synthetic folders of small pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (12, 10), hue: int = 0) -> Image.Image:
    """Return a picture of noise that is brighter in one channel; different seeds give different pictures."""
    pixels = np.random.RandomState(seed).randint(0, 100, (*size, 3)).astype(np.uint8)
    pixels[..., hue % 3] += 150
    return Image.fromarray(pixels)


def write_folder(
    root: Path,
    domains: Sequence[str] = ("north", "south", "west"),
    classes: Sequence[str] = ("cat", "dog"),
    images: int = 10,
    size: tuple[int, int] = (12, 10),
) -> Path:
    """Write ``root/<domain>/<class>/<number>.png``; the colour shows the class."""
    seed = 0
    for domain in domains:
        for label, name in enumerate(classes):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(images):
                seed += 1
                picture(seed, size, label).save(folder / f"{number:03}.png", compress_level=1)
    return root
