"""Colored digits, from MNIST."""

from pathlib import Path

from pogm.data.datasets.base import Domain, DomainDataset
from pogm.data.datasets.coloring import COLOR_NOISE, colored
from pogm.data.datasets.mnist import read_mnist


class ColoredMNIST(DomainDataset):
    """Is the digit below five? Its colour tells, except where it lies.

    Input: MNIST's digits, 2×28×28.
    Label: 1 if the digit is below five, else 0; a quarter of the labels is flipped.
    Domain: how often the colour agrees with the label; the shape agrees with it three times in four everywhere.
    Images: 23334, 23333, 23333.
    Paper: Arjovsky et al., Invariant Risk Minimization, 2019.
    Licence: CC BY-SA 3.0 (MNIST).
    """

    domains = tuple(COLOR_NOISE)
    num_classes = 2
    input_shape = (2, 28, 28)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Every domain, dealt out by the seed."""
        return colored(*read_mnist(root), seed)
