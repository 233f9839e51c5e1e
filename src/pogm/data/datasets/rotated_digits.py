"""RotatedDigits: a small RotatedMNIST that comes with the installation."""

from pathlib import Path

from pogm.data.datasets.base import Domain, DomainDataset
from pogm.data.datasets.digits import SmallDigits, read_digits
from pogm.data.datasets.rotated_mnist import ANGLES, make_rotated_domains


class RotatedDigits(DomainDataset):
    """Digits, rotated by the angle of the domain.

    Input: digits of scikit-learn, 1×8×8.
    Label: the digit.
    Domain: the angle in degrees, counter-clockwise.
    Images: 300 in each of the first three, 299 in the others.
    Paper: Ghifary et al., Domain Generalization for Object Recognition with Multi-task Autoencoders, ICCV 2015.
    Licence: CC BY 4.0 (UCI, Optical Recognition of Handwritten Digits).
    """

    domains = ANGLES
    num_classes = 10
    input_shape = (1, 8, 8)
    training = SmallDigits(lr=5e-3)
    steps = 151
    evaluate_every = 15
    embedded = True

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; the seed decides the domain of every digit."""
        return make_rotated_domains(*read_digits(), seed)
