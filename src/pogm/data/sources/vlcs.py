"""VLCS (Fang et al., 2013), in either of the two forms that go round.

DomainBed's archive has the environments and classes by name. The other has CALTECH, LABELME, PASCAL and SUN, each with
``full`` beside its parts ``train``, ``crossval`` and ``test``, and the classes by number. Only ``full`` is read:
whether the parts overlap is not documented, and an image must not count twice.
"""

from pathlib import Path

from pogm._system.errors import DataError
from pogm.data.datasets.vlcs import VLCS
from pogm.data.sources.layout import build, class_folders, find, folders, images, missing, unpack

DATASET = "VLCS"
ENVIRONMENTS = VLCS.folders
CAPITALS = {"Caltech101": "CALTECH", "LabelMe": "LABELME", "SUN09": "SUN", "VOC2007": "PASCAL"}
CLASSES = ("bird", "car", "chair", "dog", "person")  # 0 to 4 where they are numbered


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/VLCS`` from either archive, or from its folders, in ``raw``."""
    roots = unpack(raw)
    named = find(roots, ENVIRONMENTS)
    if named is not None:
        return build(out / "VLCS", class_folders({name: named / name for name in ENVIRONMENTS}, len(CLASSES)))
    numbered = find(roots, tuple(CAPITALS.values()))
    if numbered is None:
        raise missing(raw, ENVIRONMENTS)
    plan: dict[str, Path] = {}
    for environment, capitals in CAPITALS.items():
        for number, name in enumerate(CLASSES):
            folder = numbered / capitals / "full" / str(number)
            found = images(folder) if folder.is_dir() else []
            if not found:
                there = ", ".join(path.name for path in folders(numbered / capitals)) or "nothing"
                raise DataError(
                    f"Expected images of {name} in {folder}; found none ({capitals} has {there}). "
                    "Get the published files again."
                )
            plan |= {f"{environment}/{name}/{path.name}": path for path in found}
    return build(out / "VLCS", plan)
