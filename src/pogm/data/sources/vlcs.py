"""Preparation of VLCS (Fang et al., 2013), which is published in two forms.

DomainBed's archive has named environments and classes. The other archive has CALTECH, LABELME, PASCAL and SUN, each
with the folders ``full``, ``train``, ``crossval`` and ``test``, and numbered classes. Only ``full`` is read, because it
is not documented whether the other folders overlap, and no image may be used twice.
"""

from pathlib import Path

from pogm._system.errors import DataError
from pogm.data.datasets.vlcs import VLCS
from pogm.data.sources.layout import (
    find_parent,
    list_folders,
    list_images,
    make_folder,
    missing_error,
    plan_files,
    unpack,
)

DATASET = "VLCS"
ENVIRONMENTS = VLCS.folders
CAPITALS = {"Caltech101": "CALTECH", "LabelMe": "LABELME", "SUN09": "SUN", "VOC2007": "PASCAL"}
CLASSES = ("bird", "car", "chair", "dog", "person")  # 0 to 4 in the numbered form


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/VLCS`` from either archive, or from its folders, in ``raw``."""
    roots = unpack(raw)
    named = find_parent(roots, ENVIRONMENTS)
    if named is not None:
        return make_folder(out / "VLCS", plan_files({name: named / name for name in ENVIRONMENTS}, len(CLASSES)))
    numbered = find_parent(roots, tuple(CAPITALS.values()))
    if numbered is None:
        raise missing_error(raw, ENVIRONMENTS)
    plan: dict[str, Path] = {}
    for environment, capitals in CAPITALS.items():
        for number, name in enumerate(CLASSES):
            folder = numbered / capitals / "full" / str(number)
            found = list_images(folder) if folder.is_dir() else []
            if not found:
                present = ", ".join(path.name for path in list_folders(numbered / capitals)) or "nothing"
                raise DataError(
                    f"Expected images of {name} in {folder}; found none ({capitals} has {present}). "
                    "Get the published files again."
                )
            plan |= {f"{environment}/{name}/{path.name}": path for path in found}
    return make_folder(out / "VLCS", plan)
