"""The result of building a network: a featurizer."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from pogm.core.trees import Params


class Stages(nn.Sequential):
    """Sequence of stages. `blocks` names the stages, in order, after which modifiers may change the feature maps."""

    def __init__(self, stages: OrderedDict[str, nn.Module], blocks: tuple[str, ...] = ()):
        super().__init__(stages)
        self.blocks = blocks


class Featurizer(NamedTuple):
    """A module from images to features, and what is needed to load weights into it."""

    module: nn.Module
    width: int  # number of features
    inside: str = ""  # name of the submodule that weight files contain; empty for the whole module
    first: str = ""  # name of the convolution that sees the image, in that submodule
    classifier: tuple[str, ...] = ()  # names of the layers in weight files that are left out
    pretrained: Callable[[], Params] | None = None  # reads the published weights
