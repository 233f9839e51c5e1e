"""RotatedDigits."""

from pathlib import Path

from pogm.datasets.base import Domain, DomainDataset
from pogm.datasets.digits import EMBEDDED, read_digits
from pogm.datasets.rotation import ANGLES, rotated


class RotatedDigits(DomainDataset):
    """Which digit, turned by an angle that names the domain.

    Input: scikit-learn's digits, 1×8×8. Label: the digit.
    Domain: the angle, counter-clockwise; 300 ×3, 299 ×3 images.
    Paper: Ghifary et al., Domain Generalization for Object Recognition with Multi-task Autoencoders, ICCV 2015. Licence: CC BY 4.0 (UCI Optical Recognition of Handwritten Digits).
    """

    domains = ANGLES
    num_classes = 10
    input_shape = (1, 8, 8)
    training = EMBEDDED
    steps = 301
    evaluate_every = 30
    embedded = True

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Every domain, dealt out by the seed."""
        return rotated(*read_digits(), seed)
