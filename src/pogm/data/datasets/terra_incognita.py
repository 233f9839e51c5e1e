"""TerraIncognita: animals in pictures of camera traps at four locations."""

from pogm.data.datasets.image_dataset import ImageDataset


class TerraIncognita(ImageDataset):
    """Animals in pictures of camera traps; the domain is the location of the camera.

    Input: photographs by day and night.
    Label: bird, bobcat, cat, coyote, dog, empty, opossum, rabbit, raccoon or squirrel.
    Domain: the location 100, 38, 43 or 46, in this order, because folders are sorted as text.
    Images: 24330 that can still be downloaded; DomainBed's paper counts 24788.
    Paper: Beery et al., Recognition in Terra Incognita, ECCV 2018.
    Licence: CDLA-Permissive (Caltech Camera Traps).
    """

    folder = "terra_incognita"
    folders = ("location_100", "location_38", "location_43", "location_46")
    domains = ("L100", "L38", "L43", "L46")
    num_classes = 10
    counts = (4741, 9736, 3970, 5883)
