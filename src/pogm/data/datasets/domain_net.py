"""DomainNet: objects of 345 classes in six styles."""

from dataclasses import dataclass

from pogm.core.hyperparameters import MOST_SAMPLES, Power, hyper
from pogm.data.datasets.image_dataset import ImageDataset, LargeImages


@dataclass(frozen=True)
class ManyImages(LargeImages):
    """Settings for large images, with smaller batches in the search."""

    batch_size: int = hyper(
        32, Power(2, 3, 5, integer=True), least=1, most=MOST_SAMPLES
    )  # images of each domain in a minibatch


class DomainNet(ImageDataset):
    """Objects of 345 classes; the domain is the style of the picture.

    Input: pictures of any size.
    Label: the object, such as "aircraft_carrier".
    Domain: clip art, infographics, paintings, quick drawings, photographs or sketches.
    Images: 586575: the "cleaned" archives without the duplicates that DomainBed lists.
    Paper: Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019.
    Licence: fair use, for non-commercial research.
    """

    folder = "domain_net"
    folders = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    domains = ("clip", "info", "paint", "quick", "real", "sketch")
    num_classes = 345
    counts = (48129, 51605, 72266, 172500, 172947, 69128)
    training = ManyImages()
    evaluate_every = 1000
