"""DomainBed's convolutional network for MNIST."""

from collections import OrderedDict

from torch import nn

from pogm.models.featurizer import Featurizer, Stages
from pogm.models.layers import FEW_CHANNELS, ConvBlock, Im2colConv2d

WIDTH = 64


def build(input_shape: tuple[int, ...], width: int = WIDTH) -> Featurizer:
    """Build four blocks of convolution, ReLU and group norm, then the mean over positions; 128 features."""
    stages: OrderedDict[str, nn.Module] = OrderedDict(
        block1=_block(input_shape[0], width),
        block2=_block(width, 2 * width, stride=2),
        block3=_block(2 * width, 2 * width),
        block4=_block(2 * width, 2 * width),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Featurizer(Stages(stages, ("block1", "block2", "block3", "block4")), 2 * width)


def _block(inputs: int, outputs: int, stride: int = 1) -> ConvBlock:
    kind = Im2colConv2d if inputs <= FEW_CHANNELS else nn.Conv2d
    return ConvBlock(kind(inputs, outputs, 3, stride, padding=1), nn.GroupNorm(8, outputs))
