"""Colored digits, small enough to come with the package."""

from pathlib import Path

from pogm.data.datasets.base import Domain, DomainDataset
from pogm.data.datasets.coloring import COLOR_NOISE, colored
from pogm.data.datasets.digits import SmallDigits, read_digits


class ColoredDigits(DomainDataset):
    """Is the digit below five? Its colour tells, except where it lies.

    Input: the digits that scikit-learn ships, 2×8×8.
    Label: 1 if the digit is below five, else 0; a quarter of the labels is flipped.
    Domain: how often the colour agrees with the label; the shape agrees with it three times in four everywhere.
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
        """Every domain, dealt out by the seed."""
        return colored(*read_digits(), seed)
