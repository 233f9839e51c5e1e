"""PACS (Li et al., 2017): the archive's folder ``kfold`` holds the environments under their own names."""

from pathlib import Path

from pogm.data.datasets.pacs import PACS
from pogm.data.sources.layout import arranged

DATASET = "PACS"


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/PACS`` from PACS.zip, or from its folders, in ``raw``."""
    return arranged(PACS, raw, out)
