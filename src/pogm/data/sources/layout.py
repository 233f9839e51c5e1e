"""From raw folders to ``<root>/<dataset>/<environment>/<class>/<image>``, without touching what was raw."""

import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pogm._system.errors import DataError, UsageError
from pogm._system.fault_injection import fault_point
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.sources.archives import extract, is_archive
from pogm.data.sources.staging import staged

UNPACKED = "unpacked"  # the folder within the raw one that archives are unpacked into
DEPTH = 3  # levels of folders that archives put around what is looked for
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)


def unpack(raw: Path) -> list[Path]:
    """The raw folder, and what each archive in it holds; unpacked now unless it was before."""
    if not raw.is_dir():
        raise DataError(f"Expected a folder of downloaded files at {raw}; found none. Run `pogm data fetch` first.")
    roots = [raw]
    for archive in filter(is_archive, sorted(raw.iterdir())):
        target = raw / UNPACKED / archive.name
        if not target.exists():
            extract(archive, target)
        roots.append(target)
    return roots


def find(roots: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The folder nearest to the roots that has all these folders in it."""
    level = list(roots)
    for _ in range(DEPTH):
        for folder in level:
            if all((folder / name).is_dir() for name in names):
                return folder
        level = [child for folder in level for child in folders(folder)]
    return None


def missing(raw: Path, names: Sequence[str]) -> DataError:
    """The error for raw files that do not hold what they should."""
    there = ", ".join(sorted(path.name for path in raw.iterdir())[:10]) or "nothing"
    return DataError(
        f"Expected the folders {', '.join(names)} in {raw}, or an archive with them; found {there}. "
        "Run `pogm data fetch`, or put the published files there."
    )


def folders(parent: Path) -> list[Path]:
    """The folders in a folder, by name, without hidden ones."""
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def images(folder: Path) -> list[Path]:
    """The images in a folder, by name. Thumbnails' indices, hidden files and the like are not."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGES and not path.name.startswith(".") and path.is_file()
    )


def class_folders(environments: Mapping[str, Path], count: int) -> dict[str, Path]:
    """A plan of every image of every class of every environment; refuses classes that differ or are too few."""
    plan: dict[str, Path] = {}
    listed: dict[str, list[str]] = {}
    for name, folder in environments.items():
        listed[name] = []
        for kind in folders(folder):
            found = {f"{name}/{kind.name}/{path.name}": path for path in images(kind)}
            plan |= found
            listed[name] += [kind.name] if found else []
    every = sorted(set().union(*listed.values()))
    for name, classes in listed.items():
        lacking = sorted(set(every) - set(classes))
        if lacking or len(classes) != count:
            detail = f" (it lacks {', '.join(lacking[:5])}, which others have)" if lacking else ""
            raise DataError(
                f"Expected the same {count} classes in every environment; found {len(classes)} with images in "
                f"{environments[name]}{detail}. Get the published files again."
            )
    return plan


def arranged(dataset: type[ImageDataset], raw: Path, out: Path) -> Path:
    """Make a dataset's folder from an archive, or folders, that have the environments under their own names."""
    parent = find(unpack(raw), dataset.folders)
    if parent is None:
        raise missing(raw, dataset.folders)
    environments = {name: parent / name for name in dataset.folders}
    return build(out / dataset.folder, class_folders(environments, dataset.num_classes))


def build(folder: Path, plan: Mapping[str, Path]) -> Path:
    """Make a folder of these files (a path within it, a raw file), by hard links where the disk can, else by copies."""
    if folder.exists():
        there = {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}
        if there == {name: path.stat().st_size for name, path in plan.items()}:
            return folder
        raise UsageError(
            f"Expected no {folder}, or one with the same files; found {len(there)} files where {len(plan)} would be. "
            "Move it away, or choose another folder."
        )
    with staged(folder) as made:
        for parent in {(made / name).parent for name in plan}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, path in plan.items():
            fault_point("write")
            _link(path, made / name)
    return folder


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(os.path.realpath(source), target)  # of what a symbolic link means, not of the link
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        shutil.copyfile(source, target)
