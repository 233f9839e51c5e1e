"""ResNet-50, as torchvision has it: a stage's stride is on the 3×3 convolution of its first block."""

from pogm.models.featurizer import Featurizer
from pogm.models.torchvision_models import resnet


def build(input_shape: tuple[int, int, int]) -> Featurizer:
    """Stages of 3, 4, 6 and 3 bottlenecks; 2048 features."""
    return resnet(50, input_shape[0])
