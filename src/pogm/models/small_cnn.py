"""A network with feature maps for 8×8 digits, small enough that a step takes a millisecond or two on one core."""

from collections import OrderedDict

from torch import nn

from pogm.models.featurizer import Featurizer, Stages

WIDTH = 16


def build(input_shape: tuple[int, int, int]) -> Featurizer:
    """Three blocks of convolution, ReLU and group norm, each on half as many rows and columns as the one before.

    The last block's maps are not averaged over positions but read out, as a network for digits this small must know
    where a stroke is.
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
