"""ResNet-18, as torchvision has it."""

from pogm.models.featurizer import Featurizer
from pogm.models.torchvision_models import resnet


def build(input_shape: tuple[int, int, int]) -> Featurizer:
    """Four stages of two blocks; 512 features."""
    return resnet(18, input_shape[0])
