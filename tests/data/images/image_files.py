"""Image files and image folders for tests."""

import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int = 0, height: int = 6, width: int = 8) -> np.ndarray:
    """Return random pixels [H, W, 3]."""
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8)


def encode(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Encode an image as the content of a file."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(seed: int = 0, height: int = 6, width: int = 8) -> bytes:
    """Return the content of a random PNG."""
    return encode(picture(seed, height, width))


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """Return a PNG with any header, and rows that may not fit it; more chunks go before the rows."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by their paths below the root; a path that ends with a slash is an empty folder."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


def write_small_dataset(root: Path, each: int = 2, **options: int) -> Path:
    """Write an image folder with two domains, two classes and different images."""
    names = [f"{domain}/{kind}/{n}.png" for domain in ("art", "photo") for kind in ("cat", "dog") for n in range(each)]
    return write_files(root, {name: png(seed, **options) for seed, name in enumerate(names)})
