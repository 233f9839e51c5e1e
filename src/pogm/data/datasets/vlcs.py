"""VLCS: photographs of objects of five classes from four older datasets."""

from pogm.data.datasets.image_dataset import ImageDataset


class VLCS(ImageDataset):
    """Objects of five classes in photographs; the domain is the dataset that the photograph is from.

    Input: photographs of any size.
    Label: bird, car, chair, dog or person.
    Domain: Caltech101, LabelMe, SUN09 or VOC2007.
    Images: 10729.
    Paper: Fang et al., Unbiased Metric Learning, ICCV 2013.
    Licence: those of the four datasets.
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
