"""Features of published photographs by a fixed ResNet-50: datasets of vectors, on which methods train in seconds."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from pogm._system.errors import DataError
from pogm.data.datasets.array_dataset import ArrayDataset, split_by_domain
from pogm.data.datasets.base import Domain, Training
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.datasets.office_caltech10 import OfficeCaltech10
from pogm.data.datasets.pacs import PACS
from pogm.data.tables.arrays import read_arrays
from pogm.data.transforms.arrays import Columns
from pogm.data.transforms.base import Transform

NETWORK = "resnet50_v1"  # ImageNet weights; the features are the inputs of its classifier
WIDTH = 2048


class ImageFeatures(ArrayDataset):
    """Base class of features of a dataset of photographs, which ``pogm data features`` computes."""

    abstract: ClassVar[bool] = True  # a base class; not registered

    images: ClassVar[type[ImageDataset]]
    input_shape = (WIDTH,)
    folder = "features"

    @property
    def how_to_get(self) -> str:
        """The command that computes the features."""
        name = self.images.__name__
        return (
            f"pogm data features {name} --weights resnet50_imagenet_v1.safetensors "
            f"--out <data folder>/{self.folder}/{self.files[0]}"
        )

    def transform(self, training: Training) -> Transform:
        """Return the features, standardised by the training domains."""
        return Columns.build(WIDTH)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all domains; raise a `DataError` if the features are of another network or of other images."""
        (path,) = self.paths(root)
        found = read_arrays(path, ("x", "y", "domain", "network", "weights"))
        names, domains = np.unique(found["y"]), found["domain"].tolist()
        counts = tuple(map(domains.count, self.domains))
        network, weights, shape = str(found["network"]), str(found["weights"]), found["x"].shape[1:]
        if (network, shape) != (NETWORK, self.input_shape) or weights == "random":
            raise DataError(
                f"Expected {WIDTH} features of {NETWORK} with ImageNet weights in {path}; found {list(shape)} of "
                f"{network} with weights {weights}. Compute them again: {self.how_to_get}"
            )
        if sum(counts) != len(domains) or 0 in counts or len(names) != self.num_classes:
            raise DataError(
                f"Expected features of {self.num_classes} classes in the domains {', '.join(self.domains)} in {path}; "
                f"found {len(names)} classes in {', '.join(sorted(set(domains)))}. Compute them again: "
                f"{self.how_to_get}"
            )
        labels = np.searchsorted(names, found["y"])
        return split_by_domain(found["x"], labels, np.array(list(map(self.domains.index, domains))), len(self.domains))


class PACSFeatures(ImageFeatures):
    """Features of the images of `PACS` by a ResNet-50 with ImageNet weights, which is not trained further.

    Input: 2048 features of a picture, standardised by the training domains.
    Label: dog, elephant, giraffe, guitar, horse, house or person.
    Domain: art painting, cartoon, photo or sketch.
    Samples: 2048, 2344, 1670, 3929.
    Paper: Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017.
    Licence: none stated; for research.
    """

    images = PACS
    domains = PACS.domains
    num_classes = PACS.num_classes
    files = ("PACS.npz",)


class OfficeCaltech10Features(ImageFeatures):
    """Features of the images of `OfficeCaltech10` by a ResNet-50 with ImageNet weights, which is not trained further.

    Input: 2048 features of a photograph, standardised by the training domains.
    Label: backpack, bike, calculator, headphones, keyboard, laptop, monitor, mouse, mug or projector.
    Domain: product pictures of Amazon, Caltech-256, a DSLR camera, or a webcam.
    Samples: 958, 1123, 157, 295.
    Paper: Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
    Licence: none stated; for research.
    """

    images = OfficeCaltech10
    domains = OfficeCaltech10.domains
    num_classes = OfficeCaltech10.num_classes
    files = ("OfficeCaltech10.npz",)
