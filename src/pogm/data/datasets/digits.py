"""Handwritten digits: readers of MNIST and of scikit-learn's digits, from which several datasets are made.

MNIST is read as its authors publish it: four IDX files, plain or gzipped, in ``<root>/MNIST/raw``. The digits of
scikit-learn (1,797 images of 8×8) come with the installation.
"""

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pogm._system.errors import DataError
from pogm.core.hyperparameters import MOST_SAMPLES, Power, hyper
from pogm.data.datasets.base import Training

PARTS = ("train", "t10k")


@dataclass(frozen=True)
class SmallDigits(Training):
    """Settings that learn 8×8 digits in a second on a CPU. DomainBed's ranges are meant for larger images."""

    network: str = hyper("mlp")  # name of the network, or timm/MODEL
    lr: float = hyper(3e-3, Power(10, -3.5, -2), above=0)  # learning rate
    batch_size: int = hyper(
        32, Power(2, 3, 6, integer=True), least=1, most=MOST_SAMPLES
    )  # images of each domain in a minibatch


def read_digits() -> tuple[Tensor, Tensor]:
    """Return the digits of scikit-learn: images [1797, 8, 8] uint8 (17 grey levels scaled to 0…255), labels [1797]."""
    package = find_spec("sklearn")  # does not import it, which would take a third of the time of a short run
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if file is not None and file.exists():
        table = np.loadtxt(gzip.decompress(file.read_bytes()).decode().splitlines(), delimiter=",", dtype=np.int64)
        values, labels = table[:, :-1], table[:, -1]
    else:  # another version of scikit-learn may keep the file elsewhere
        from sklearn.datasets import load_digits

        values, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(values).double().reshape(-1, 8, 8) * (255 / 16)
    return images.round().to(torch.uint8), torch.from_numpy(labels).long()


def read_mnist(root: Path | None) -> tuple[Tensor, Tensor]:
    """Return MNIST: images [70000, 28, 28] uint8, the training images first, and labels [70000]."""
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
    """Read an IDX file of bytes: two zeros, the type 8, the number of axes, their lengths, then the values."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise DataError(
            f"Expected {path.name} or {zipped.name} in {path.parent}; found neither. "
            "Put MNIST's four IDX files there, or name another data folder with --data."
        )
    try:
        content = path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"Expected a complete gzip file; found {zipped} damaged ({error}). Copy it again.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"Expected an IDX file of bytes; found {path} to begin with {content[:4]!r}. Copy it again.")
    axes = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"Expected {shape} values in {path}; found {values.size}. Copy it again.")
    return torch.from_numpy(values.reshape(shape).copy())
