"""Small convolutional network for time series, and for spectrograms with one channel per frequency band."""

from collections import OrderedDict

from torch import nn

from pogm.models.featurizer import Featurizer, Stages

WIDTH = 32


def build(input_shape: tuple[int, ...]) -> Featurizer:
    """Build three blocks of convolution over time, ReLU and group norm, then the mean over time; 64 features.

    Args:
        input_shape: Channels and length of a series. Each block halves the length.
    """
    stages: OrderedDict[str, nn.Module] = OrderedDict(
        block1=_block(input_shape[0], WIDTH),
        block2=_block(WIDTH, 2 * WIDTH),
        block3=_block(2 * WIDTH, 2 * WIDTH),
        pool=nn.AdaptiveAvgPool1d(1),
        flatten=nn.Flatten(),
    )
    return Featurizer(Stages(stages), 2 * WIDTH)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.GroupNorm(8, outputs),
    )
