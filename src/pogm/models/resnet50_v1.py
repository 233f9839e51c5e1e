"""ResNet-50 as its paper and Keras have it: a stage's stride is on the first 1×1 convolution of its first block.

Its weights have the names and shapes of ``resnet50``, so a file of the one fits the other without a complaint, and
loses accuracy there. Choose the network that the file was trained with.
"""

from typing import Any

from pogm.models.featurizer import Featurizer
from pogm.models.torchvision_models import resnet


def build(input_shape: tuple[int, int, int]) -> Featurizer:
    """Stages of 3, 4, 6 and 3 bottlenecks; 2048 features. Nobody publishes its weights for torch: name a file."""
    featurizer = resnet(50, input_shape[0])
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = featurizer.module.get_submodule(f"{stage}.0")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return featurizer._replace(pretrained=None)
