"""PACS (Li et al., 2017): the archive's folder ``kfold`` holds the environments under their own names."""

from pathlib import Path

from pogm.sources.layout import build, class_folders, find, missing, unpack

DATASET = "PACS"
ENVIRONMENTS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = 7


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/PACS`` from PACS.zip, or from its folders, in ``raw``."""
    parent = find(unpack(raw), ENVIRONMENTS)
    if parent is None:
        raise missing(raw, ENVIRONMENTS)
    return build(out / "PACS", class_folders({name: parent / name for name in ENVIRONMENTS}, CLASSES))
