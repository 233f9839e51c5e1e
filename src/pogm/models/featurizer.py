"""A featurizer: what an architecture builds."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from pogm.core.trees import Params


class Stages(nn.Sequential):
    """Stages one after the other, which say after which of them the feature maps may be changed, early ones first."""

    def __init__(self, stages: OrderedDict[str, nn.Module], blocks: tuple[str, ...] = ()):
        super().__init__(stages)
        self.blocks = blocks  # names of submodules; modifiers read it


class Featurizer(NamedTuple):
    """A module from images to features, and what it takes to fill it from a file."""

    module: nn.Module
    width: int  # outputs
    inside: str = ""  # the part that files hold, under their own names
    first: str = ""  # its convolution that sees the image
    classifier: tuple[str, ...] = ()  # what files have on top of the features; left out
    pretrained: Callable[[], Params] | None = None  # reads the weights its authors published
