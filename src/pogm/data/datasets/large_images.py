"""What photographs and drawings decide about training: DomainBed's settings for images of 224×224."""

from dataclasses import dataclass

from pogm.core.hyperparameters import Power, hyper
from pogm.data.datasets.base import Training
from pogm.data.transforms.base import Transform
from pogm.data.transforms.photographs import Photographs


@dataclass(frozen=True)
class LargeImages(Training):
    """A ResNet-50 with ImageNet's weights, and augmented images.

    Training domains are *evaluated* on augmented images too, as in DomainBed, whose transform belongs to the domain;
    ``eval_augment=False`` evaluates every domain on plain ones.
    """

    network: str = hyper("resnet50")
    weights: str = hyper("pretrained")
    lr: float = hyper(5e-5, Power(10, -5, -3.5), above=0)
    weight_decay: float = hyper(0.0, Power(10, -6, -2), least=0)
    batch_size: int = hyper(32, Power(2, 3, 5.5, integer=True), least=1)
    data_augmentation: bool = hyper(True)
    eval_augment: bool = hyper(True)
    image_size: int = hyper(224, least=8, most=1024)

    def transform(self, input_shape: tuple[int, int, int]) -> Transform:
        """Resized to a square of ``image_size`` and normalised; augmented if asked to."""
        shape = (input_shape[0], self.image_size, self.image_size)
        return Photographs(shape, self.data_augmentation, self.eval_augment)
