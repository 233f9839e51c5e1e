"""MNIST as its authors publish it: four IDX files, plain or gzipped, in ``<root>/MNIST/raw``."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError

PARTS = ("train", "t10k")


def read_mnist(root: Path | None) -> tuple[Tensor, Tensor]:
    """All images [70000, 28, 28] as uint8, training ones first, and labels [70000]."""
    if root is None:
        raise DataError(
            "Expected the folder that holds MNIST/raw; found none given. Pass --data FOLDER or set POGM_DATA."
        )
    folder = root / "MNIST" / "raw"
    images = torch.cat([read_idx(folder / f"{part}-images-idx3-ubyte") for part in PARTS])
    labels = torch.cat([read_idx(folder / f"{part}-labels-idx1-ubyte") for part in PARTS])
    if len(images) != len(labels):
        raise DataError(f"Expected as many labels as images in {folder}; found {len(images)} and {len(labels)}.")
    return images, labels.long()


def read_idx(path: Path) -> Tensor:
    """One IDX file of bytes: two zeros, the type 8, the number of axes, their lengths, the numbers."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise DataError(
            f"Expected {path.name} or {zipped.name} in {path.parent}; found neither. "
            "Put MNIST's four IDX files there, or name another data folder with --data."
        )
    try:
        content = path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"Expected a whole gzip file; found {zipped} damaged ({error}). Copy it again.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"Expected an IDX file of bytes; found {path} to begin with {content[:4]!r}. Copy it again.")
    axes = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if numbers.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"Expected {shape} numbers in {path}; found {numbers.size}. Copy it again.")
    return torch.from_numpy(numbers.reshape(shape).copy())
