"""VLCS: photographs of four older datasets."""

from pogm.data.datasets.image_dataset import ImageDataset


class VLCS(ImageDataset):
    """Which of five things, in a photograph from the dataset that names the domain.

    Input: photographs of any size.
    Label: bird, car, chair, dog or person.
    Domain: Caltech101, LabelMe, SUN09 or VOC2007.
    Images: 10729.
    Paper: Fang et al., Unbiased Metric Learning, ICCV 2013.
    Licence: that of each of the four.
    """

    folder = "VLCS"
    folders = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    domains = ("C", "L", "S", "V")
    num_classes = 5
    counts = (1415, 2656, 3282, 3376)
    class_counts = (
        (237, 123, 118, 67, 870),
        (80, 1209, 88, 42, 1237),
        (20, 932, 1036, 30, 1264),
        (330, 699, 428, 420, 1499),
    )
