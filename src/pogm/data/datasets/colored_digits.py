"""ColoredDigits: a small ColoredMNIST that comes with the installation."""

from pathlib import Path

from pogm.data.datasets.base import Domain, DomainDataset
from pogm.data.datasets.colored_mnist import COLOR_NOISE, make_colored_domains
from pogm.data.datasets.digits import SmallDigits, read_digits


class ColoredDigits(DomainDataset):
    """Digits below five against the others, with a colour that is a misleading feature.

    Input: digits of scikit-learn, 2×8×8.
    Label: 1 if the digit is below five, else 0; a quarter of the labels is flipped.
    Domain: how often the colour agrees with the label. The shape agrees with it in 75% of the images of all domains.
    Images: 599, 599, 599.
    Paper: Arjovsky et al., Invariant Risk Minimization, 2019.
    Licence: CC BY 4.0 (UCI, Optical Recognition of Handwritten Digits).
    """

    domains = tuple(COLOR_NOISE)
    num_classes = 2
    input_shape = (2, 8, 8)
    training = SmallDigits(lr=1.5e-3)
    steps = 201
    evaluate_every = 20
    embedded = True

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; the seed decides the domain, the label noise and the colour of every digit."""
        return make_colored_domains(*read_digits(), seed)
