"""Preparation of raw files as ``<root>/<dataset>/<environment>/<class>/<image>``; the raw files are not changed."""

import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pogm._system.errors import DataError, UsageError
from pogm._system.fault_injection import fault_point
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.images.decode import IMAGE_SUFFIXES
from pogm.data.sources.archives import extract, is_archive, stage_directory

UNPACKED = "unpacked"  # folder of the unpacked archives, in the raw folder
DEPTH = 3  # levels of folders to search for the environments
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)


def unpack(raw: Path) -> list[Path]:
    """Unpack every archive in the raw folder that is not unpacked yet; return the raw folder and all unpacked ones."""
    if not raw.is_dir():
        raise DataError(f"Expected a folder of downloaded files at {raw}; found none. Run `pogm data fetch` first.")
    roots = [raw]
    for archive in filter(is_archive, sorted(raw.iterdir())):
        target = raw / UNPACKED / archive.name
        if not target.exists():
            extract(archive, target)
        roots.append(target)
    return roots


def find_parent(roots: Iterable[Path], names: Sequence[str]) -> Path | None:
    """Return the folder nearest to the roots that contains folders of all these names; None if there is none."""
    level = list(roots)
    for _ in range(DEPTH):
        for folder in level:
            if all((folder / name).is_dir() for name in names):
                return folder
        level = [child for folder in level for child in list_folders(folder)]
    return None


def missing_error(raw: Path, names: Sequence[str]) -> DataError:
    """Return the error for raw files without the expected folders."""
    found = ", ".join(sorted(path.name for path in raw.iterdir())[:10]) or "nothing"
    return DataError(
        f"Expected the folders {', '.join(names)} in {raw}, or an archive with them; found {found}. "
        "Run `pogm data fetch`, or put the published files there."
    )


def list_folders(parent: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_images(folder: Path) -> list[Path]:
    """Return the files in a folder that have the suffix of an image, sorted, without hidden ones."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def plan_files(environments: Mapping[str, Path], count: int) -> dict[str, Path]:
    """Return the raw file of every path ``<environment>/<class>/<image>``.

    Raises:
        DataError: If the environments do not have the same classes, or not `count` of them.
    """
    plan: dict[str, Path] = {}
    listed: dict[str, list[str]] = {}
    for name, folder in environments.items():
        listed[name] = []
        for kind in list_folders(folder):
            found = {f"{name}/{kind.name}/{path.name}": path for path in list_images(kind)}
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


def prepare_folders(dataset: type[ImageDataset], raw: Path, out: Path) -> Path:
    """Make a dataset's folder from archives or folders in `raw` that contain its environments under their names."""
    parent = find_parent(unpack(raw), dataset.folders)
    if parent is None:
        raise missing_error(raw, dataset.folders)
    environments = {name: parent / name for name in dataset.folders}
    return make_folder(out / dataset.folder, plan_files(environments, dataset.num_classes))


def make_folder(folder: Path, plan: Mapping[str, Path]) -> Path:
    """Make a folder of hard links to raw files, or of copies where links are not possible.

    Args:
        folder: The folder to make. If it has the same files already, nothing is done.
        plan: Raw file of every path in the folder.
    """
    if folder.exists():
        files = (path for path in folder.rglob("*") if path.is_file())
        found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        if found == {name: path.stat().st_size for name, path in plan.items()}:
            return folder
        raise UsageError(
            f"Expected no {folder}, or one with the same files; found {len(found)} files instead of {len(plan)}. "
            "Move it away, or choose another folder."
        )
    with stage_directory(folder) as made:
        for parent in {(made / name).parent for name in plan}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, path in plan.items():
            fault_point("write")
            _link(path, made / name)
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(os.path.realpath(source), target)  # the target of a symbolic link, not the link itself
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        shutil.copyfile(source, target)
