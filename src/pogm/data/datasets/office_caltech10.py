"""OfficeCaltech10: office objects of ten classes, photographed in four ways."""

from pogm.data.datasets.image_dataset import ImageDataset


class OfficeCaltech10(ImageDataset):
    """The ten classes that Office-31 and Caltech-256 share; the domain is the source of the photographs.

    Input: photographs of any size.
    Label: backpack, bike, calculator, headphones, keyboard, laptop, monitor, mouse, mug or projector.
    Domain: product pictures of Amazon, Caltech-256, a DSLR camera, or a webcam.
    Images: 2533.
    Paper: Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
    Licence: none stated; for research.
    """

    folder = "OfficeCaltech"
    folders = ("amazon", "caltech", "dslr", "webcam")
    domains = ("A", "C", "D", "W")
    num_classes = 10
    counts = (958, 1123, 157, 295)
    is_fetched = False
