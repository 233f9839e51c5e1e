"""Location of the images of a dataset: a folder or a metadata file, with its columns and its class mapping."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.data.dataset_paths import is_table
from pogm.data.images.class_folders import ImageTree, check_domains, list_tree, map_classes, read_tree
from pogm.data.images.metadata import find_columns, read_table
from pogm.data.images.parallel import Progress, no_progress
from pogm.data.tables.reading import TableRow, read_rows

CLASSES = "classes.csv"  # class mapping in the folder of a dataset, if its columns are from and to


@dataclass(frozen=True)
class Listing:
    """Location of a dataset's images and how to list them. It can be hashed."""

    path: Path  # a folder <domain>/<class>/<image>, or a metadata file
    columns: tuple[str, ...] = ()  # column of each role of a metadata file: role, name, role, name, ...
    mapping: tuple[str, ...] = ()  # new names of classes: from, to, from, to, ...

    @property
    def root(self) -> Path:
        """Folder of the images."""
        return self.path if self.path.is_dir() else self.path.parent

    def read(self, strict: bool = True, progress: Progress = no_progress) -> ImageTree:
        """List the images.

        Args:
            strict: Refuse domains without images and bad links in a folder.
            progress: Shows how many class folders were listed.
        """
        if self.path.is_dir() or not is_table(self.path):
            tree = (read_tree if strict else list_tree)(self.path, progress=progress)
        else:
            tree = read_table(self.path, to_pairs(self.columns))
        mapped = map_classes(tree, to_pairs(self.mapping))
        if strict:
            check_domains(mapped)
        return mapped


def to_pairs(flat: tuple[str, ...]) -> dict[str, str]:
    """Return a dictionary from its keys and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def make_listing(path: Path, options: Mapping[str, str]) -> Listing:
    """Return the listing of a folder or a metadata file, with its columns and its class mapping.

    Args:
        path: A folder, or a metadata file.
        options: ``classes``: file of the class mapping, in the folder of the dataset or elsewhere (default:
            ``classes.csv`` in the folder, if it has the columns from and to). For a metadata file also the columns:
            ``path``, ``label``, ``domain``, ``group`` and ``split``.
    """
    root = path if path.is_dir() else path.parent
    flat: list[str] = []
    if "classes" in options:
        inside = root / options["classes"]
        mapping = read_mapping(inside if inside.is_file() else Path(options["classes"]))
    else:
        mapping = read_mapping(root / CLASSES) if _is_mapping(root / CLASSES) else {}
    if not path.is_dir():
        header = next(read_rows(path), TableRow(1, []))
        for role, name in find_columns(path, header.cells, options).items():
            flat += [role, name]
    return Listing(path, tuple(flat), tuple(text for pair in mapping.items() for text in pair))


def read_mapping(path: Path) -> dict[str, str]:
    """Read a class mapping: a CSV file with the columns ``from`` and ``to``. An empty ``to`` leaves the class out."""
    header, *rows = list(read_rows(path)) or [TableRow(1, [])]
    names = [name.lower() for name in header.cells]
    if names[:2] != ["from", "to"]:
        raise DataError(
            f"Expected the columns from,to in {printable(str(path))}; found {','.join(header.cells) or 'none'}. "
            "Write a row for each class: its name now, and its new name."
        )
    mapping: dict[str, str] = {}
    for line, cells in rows:
        old, new = (*cells, "", "")[:2]
        if not old or mapping.get(old, new) != new:
            raise DataError(
                f"Expected each class once in {printable(str(path))}; found {old or 'no name'!r} in line {line}. "
                "Correct this line."
            )
        mapping[old] = new
    return mapping


def _is_mapping(path: Path) -> bool:
    """Return True if there is a CSV file with the columns of a class mapping."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return [name.strip().lower() for name in re.split("[,;\t]", file.readline())][:2] == ["from", "to"]
    except OSError:
        return False
