"""MobileNetV2 (Sandler et al., 2018), as in torchvision. It can be fine-tuned on a CPU."""

from collections import OrderedDict
from functools import partial

from torch import nn

from pogm.core.random_layers import Dropout
from pogm.models.featurizer import Featurizer, Stages
from pogm.models.weights import load_published, set_input_channels


def build(input_shape: tuple[int, ...]) -> Featurizer:
    """Build nineteen stages, ``features.0`` … ``features.18``, and the mean over positions; 1280 features."""
    from torchvision import models

    model = models.mobilenet_v2()
    set_input_channels(model.features[0][0], input_shape[0])
    stages: OrderedDict[str, nn.Module] = OrderedDict(
        features=model.features, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), dropout=Dropout()
    )
    return Featurizer(
        Stages(
            stages, ("features.3", "features.6", "features.13", "features.17")
        ),  # at 1/4, 1/8, 1/16 and 1/32 of the size
        model.last_channel,
        first="features.0.0",
        classifier=("classifier",),
        pretrained=partial(load_published, models.MobileNet_V2_Weights.IMAGENET1K_V1.url),
    )
