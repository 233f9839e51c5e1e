"""What the architectures that torchvision has in stock share."""

from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from pogm.core.random_layers import Dropout
from pogm.models.featurizer import Featurizer, Stages
from pogm.models.weights import published, with_channels


def resnet(depth: int, channels: int) -> Featurizer:
    """A residual network (He et al., 2016) without its last layer, as stages ``layer1`` … ``layer4`` of a sequence."""
    from torchvision import models

    model: Any = getattr(models, f"resnet{depth}")()
    set_channels(model.conv1, channels)
    stages: OrderedDict[str, nn.Module] = OrderedDict(model.named_children())
    del stages["fc"]
    stages |= {"flatten": nn.Flatten(), "dropout": Dropout()}
    source = getattr(models, f"ResNet{depth}_Weights").IMAGENET1K_V1.url
    return Featurizer(
        Stages(stages, ("layer1", "layer2", "layer3", "layer4")),
        model.fc.in_features,
        first="conv1",
        classifier=("fc",),
        pretrained=partial(published, source),
    )


def set_channels(layer: nn.Conv2d, channels: int) -> None:
    """Make a convolution take images with another number of channels."""
    layer.in_channels = channels
    layer.weight = nn.Parameter(with_channels(layer.weight.detach(), channels))
