"""PACS: objects of seven classes in photographs, art paintings, cartoons and sketches."""

from pogm.data.datasets.image_dataset import ImageDataset


class PACS(ImageDataset):
    """Objects of seven classes; the domain is the style of the picture.

    Input: pictures, mostly 227×227.
    Label: dog, elephant, giraffe, guitar, horse, house or person.
    Domain: art painting, cartoon, photo or sketch.
    Images: 9991.
    Paper: Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017.
    Licence: none stated; for research.
    """

    folder = "PACS"
    folders = ("art_painting", "cartoon", "photo", "sketch")
    domains = ("A", "C", "P", "S")
    num_classes = 7
    counts = (2048, 2344, 1670, 3929)
