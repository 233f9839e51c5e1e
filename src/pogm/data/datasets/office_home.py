"""OfficeHome: everyday objects of 65 classes in four styles."""

from pogm.data.datasets.image_dataset import ImageDataset


class OfficeHome(ImageDataset):
    """Objects of offices and homes, of 65 classes; the domain is the style of the picture.

    Input: pictures of any size.
    Label: the object, such as "Alarm Clock".
    Domain: art, clip art, product pictures, or photographs of the real world.
    Images: 15588.
    Paper: Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017.
    Licence: for non-commercial research.
    """

    folder = "office_home"
    folders = ("Art", "Clipart", "Product", "Real World")
    domains = ("A", "C", "P", "R")
    num_classes = 65
    counts = (2427, 4365, 4439, 4357)
