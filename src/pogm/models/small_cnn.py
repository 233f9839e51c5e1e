"""Small convolutional network for 8×8 digits. A step takes one or two milliseconds on one core."""

from collections import OrderedDict

from torch import nn

from pogm.models.featurizer import Featurizer, Stages

WIDTH = 16


def build(input_shape: tuple[int, ...]) -> Featurizer:
    """Build three blocks of convolution, ReLU and group norm; each halves the number of rows and columns.

    The last feature maps are flattened and not averaged over positions, because positions matter in such small digits.
    """
    rows, columns = (-(-side // 8) for side in input_shape[1:])
    stages: OrderedDict[str, nn.Module] = OrderedDict(
        block1=_block(input_shape[0], WIDTH),
        block2=_block(WIDTH, 2 * WIDTH),
        block3=_block(2 * WIDTH, 4 * WIDTH),
        flatten=nn.Flatten(),
    )
    return Featurizer(Stages(stages, ("block1", "block2", "block3")), 4 * WIDTH * rows * columns)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.GroupNorm(4, outputs),
    )
