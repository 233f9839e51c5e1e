"""Office-Home (Venkateswara et al., 2017): ``OfficeHomeDataset_10072016`` holds the environments."""

from pathlib import Path

from pogm.sources.layout import build, class_folders, find, missing, unpack

DATASET = "OfficeHome"
ENVIRONMENTS = ("Art", "Clipart", "Product", "Real World")
CLASSES = 65


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/office_home`` from the published zip file, or from its folders, in ``raw``."""
    parent = find(unpack(raw), ENVIRONMENTS)
    if parent is None:
        raise missing(raw, ENVIRONMENTS)
    return build(out / "office_home", class_folders({name: parent / name for name in ENVIRONMENTS}, CLASSES))
