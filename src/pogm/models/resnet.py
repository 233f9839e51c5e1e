"""Residual networks (He et al., 2016), as in torchvision: ResNet-18 and two variants of ResNet-50."""

from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from pogm.core.random_layers import Dropout
from pogm.models.featurizer import Featurizer, Stages
from pogm.models.weights import load_published, set_input_channels


def build_resnet(depth: int, input_shape: tuple[int, ...]) -> Featurizer:
    """Build torchvision's ResNet without its last layer, as a sequence with the stages ``layer1`` … ``layer4``.

    In ResNet-50, the stride of a stage is in the 3×3 convolution of its first block.
    """
    from torchvision import models

    model: Any = getattr(models, f"resnet{depth}")()
    set_input_channels(model.conv1, input_shape[0])
    stages: OrderedDict[str, nn.Module] = OrderedDict(model.named_children())
    del stages["fc"]
    stages |= {"flatten": nn.Flatten(), "dropout": Dropout()}
    source = getattr(models, f"ResNet{depth}_Weights").IMAGENET1K_V1.url
    return Featurizer(
        Stages(stages, ("layer1", "layer2", "layer3", "layer4")),
        model.fc.in_features,
        first="conv1",
        classifier=("fc",),
        pretrained=partial(load_published, source),
    )


def build_resnet50_v1(input_shape: tuple[int, ...]) -> Featurizer:
    """Build the ResNet-50 of the paper and of Keras: the stride of a stage is in its first 1×1 convolution.

    The weights have the names and shapes of ``resnet50``. A file for one network also fits the other, but the accuracy
    is lower. Choose the network that the file was trained with. No weights are published for torch.
    """
    featurizer = build_resnet(50, input_shape)
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = featurizer.module.get_submodule(f"{stage}.0")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return featurizer._replace(pretrained=None)


NETWORKS = {
    "resnet18": partial(build_resnet, 18),  # 512 features
    "resnet50": partial(build_resnet, 50),  # 2048 features
    "resnet50_v1": build_resnet50_v1,  # 2048 features
}
