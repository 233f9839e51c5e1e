"""Rotated digits, from MNIST."""

from pathlib import Path

from pogm.data.datasets.base import Domain, DomainDataset
from pogm.data.datasets.mnist import read_mnist
from pogm.data.datasets.rotation import ANGLES, rotated


class RotatedMNIST(DomainDataset):
    """Which digit, turned by an angle that names the domain.

    Input: MNIST's digits, 1×28×28.
    Label: the digit.
    Domain: the angle in degrees, counter-clockwise.
    Images: 11667 in each of the first four, 11666 in the last two.
    Paper: Ghifary et al., Domain Generalization for Object Recognition with Multi-task Autoencoders, ICCV 2015.
    Licence: CC BY-SA 3.0 (MNIST).
    """

    domains = ANGLES
    num_classes = 10
    input_shape = (1, 28, 28)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Every domain, dealt out by the seed."""
        return rotated(*read_mnist(root), seed)
