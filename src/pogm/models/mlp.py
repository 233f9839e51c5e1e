"""Multilayer perceptron with two hidden layers, for vectors, counts of words and 8×8 digits."""

import math

from torch import nn

from pogm.models.featurizer import Featurizer

WIDTH = 128


def build(input_shape: tuple[int, ...]) -> Featurizer:
    """Build linear, ReLU, linear, ReLU on the flattened input; 128 features."""
    layers = [
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
    ]
    return Featurizer(nn.Sequential(*layers), WIDTH)
