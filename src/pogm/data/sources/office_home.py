"""Office-Home (Venkateswara et al., 2017): ``OfficeHomeDataset_10072016`` holds the environments."""

from pathlib import Path

from pogm.data.datasets.office_home import OfficeHome
from pogm.data.sources.layout import arranged

DATASET = "OfficeHome"


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/office_home`` from the published zip file, or from its folders, in ``raw``."""
    return arranged(OfficeHome, raw, out)
