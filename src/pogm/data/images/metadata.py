"""Metadata files of images in CSV or TSV.

The columns ``path``, ``label`` and ``domain`` are required; ``group`` and ``split`` are optional. Other names are found
if they are usual (see `USUAL`) or given. A path is relative to the folder of the metadata file.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.data.images.class_folders import ImageFile, ImageTree
from pogm.data.tables.reading import TableRow, read_rows

REQUIRED = ("path", "label", "domain")
USUAL = {  # usual names of columns, besides the first
    "path": ("path", "filename", "file_name", "file", "filepath", "image_path", "img_path", "img_filename", "image"),
    "label": ("label", "y", "class", "target"),
    "domain": ("domain", "site", "hospital", "center", "centre", "location", "environment"),
    "group": ("group",),
    "split": ("split",),
}
SPLITS = {
    "train": ("train", "training", "0"),  # the numbers of WILDS
    "val": ("val", "valid", "validation", "dev", "id_val", "1"),
    "test": ("test", "testing", "id_test", "2"),
}
SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names}
LISTED = 5  # lines that an error names


def find_columns(path: Path, header: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the column of each role: the given one, the role itself, or a usual name."""
    found = {}
    for role, usual in USUAL.items():
        if role in given:
            present = [name for name in header if name == given[role]]
        else:
            present = [name for name in usual if name in header]
            present = present[:1] if role in present else present
        if len(present) == 1:
            found[role] = present[0]
        elif role in given or role in REQUIRED:
            wanted = given.get(role, role)
            several = f"several: {', '.join(present)}" if present else f"the columns {', '.join(header) or '(none)'}"
            name = f"{path.name}:{role}=COLUMN"
            raise DataError(
                f"Expected one column {wanted!r} in line 1 of {printable(str(path))}; found {several}. Add it, or name "
                f"the column after the path: {printable(name)}"
            )
    return found


class _Image(NamedTuple):
    """A row of a metadata file."""

    path: str
    label: str
    domain: str
    group: str
    split: str


def read_table(path: Path, columns: Mapping[str, str] | None = None, least_domains: int = 2) -> ImageTree:
    """List the images of a metadata file, sorted by domain, class and path.

    Rows that are equal in all columns used count once.

    Args:
        path: The metadata file.
        columns: Name of the column of each role; usual names if None.
        least_domains: Smallest number of domains.

    Raises:
        DataError: With line numbers, if a column or a file is missing, a cell is empty, a path leaves the folder, a
            split is unknown, rows of one path differ, or a group is in several splits of a domain.
    """
    rows = read_rows(path)
    header = next(rows, TableRow(1, [])).cells
    chosen = find_columns(path, header, columns or {})
    positions = {role: header.index(name) for role, name in chosen.items()}
    problems: list[tuple[int, str]] = []
    images: dict[str, tuple[int, _Image]] = {}
    resolve_folder: Callable[[str], str] = cache(os.path.realpath)
    root = os.path.realpath(path.parent)
    for line, cells in rows:
        if len(cells) != len(header):
            problems.append((line, f"{len(cells)} cells instead of {len(header)}"))
            continue
        values = {role: cells[position] for role, position in positions.items()}
        if empty := [chosen[role] for role, value in values.items() if not value]:
            problems.append((line, f"an empty {' and '.join(empty)}"))
            continue
        split = SPLIT_OF.get(values.get("split", "train").lower())
        if split is None:
            problems.append((line, f"the split {printable(values['split'])!r}, which is not train, val or test"))
            continue
        name = os.path.normpath(os.path.join(root, values["path"]))
        relative = os.path.relpath(name, root).replace(os.sep, "/")
        if reason := _find_problem(name, root, resolve_folder):
            problems.append((line, f"the path {printable(values['path'])}, which {reason}"))
            continue
        image = _Image(relative, values["label"], values["domain"], values.get("group", ""), split)
        first, other = images.setdefault(relative, (line, image))
        if other != image:
            problems.append((line, f"{printable(relative)} with other values than in line {first}"))
    problems += _find_divided_groups(images.values())
    if problems:
        _raise_problems(path, problems)
    return _make_tree(path, [image for _, image in images.values()], positions, least_domains)


def _find_problem(name: str, root: str, resolve_folder: Callable[[str], str]) -> str:
    """Return why a file cannot be used; empty if it can."""
    if "\0" in name:
        return "contains a NUL character"
    real = os.path.realpath(name) if os.path.islink(name) else f"{resolve_folder(os.path.dirname(name))}/x"
    if os.path.commonpath((root, os.path.dirname(real))) != root or not name.startswith(root.rstrip("/") + "/"):
        return f"is outside of the folder {printable(os.path.basename(root))}"
    return "" if os.path.isfile(name) else "does not exist"


def _find_divided_groups(images: Iterable[tuple[int, _Image]]) -> list[tuple[int, str]]:
    """Return the lines at which a group of a domain appears in a second split."""
    first: dict[tuple[str, str], tuple[int, str]] = {}
    problems = []
    for line, image in images:
        if image.group:
            other, split = first.setdefault((image.domain, image.group), (line, image.split))
            if split != image.split:
                text = f"group {printable(image.group)} in {image.split}, but in {split} in line {other}"
                problems.append((line, text))
    return problems


def _raise_problems(path: Path, problems: list[tuple[int, str]]) -> None:
    problems.sort()
    named = "; ".join(f"in line {line} {text}" for line, text in problems[:LISTED])
    more = f"; and {len(problems) - LISTED} more lines" if len(problems) > LISTED else ""
    raise DataError(
        f"Expected an existing image with its label and domain in every row of {printable(str(path))}; found {named}"
        f"{more}. Correct these lines."
    )


def _make_tree(path: Path, images: list[_Image], roles: Iterable[str], least_domains: int) -> ImageTree:
    domains = sorted({image.domain for image in images})
    classes = sorted({image.label for image in images})
    if len(domains) < max(least_domains, 1):
        wanted = "two or more domains" if least_domains == 2 else f"{max(least_domains, 1)} or more domains"
        raise DataError(
            f"Expected {wanted} in {printable(str(path))}; found "
            f"{', '.join(map(printable, domains)) or 'none'}. Name the column of the domain, or add images of another."
        )
    labels, numbers = ({name: number for number, name in enumerate(names)} for names in (classes, domains))
    images = sorted(images, key=lambda image: (image.domain, image.label, image.path))
    files = tuple(ImageFile(image.path, numbers[image.domain], labels[image.label]) for image in images)
    return ImageTree(
        root=path.parent,
        domains=tuple(domains),
        classes=tuple(classes),
        files=files,
        folders=frozenset((file.label, file.domain) for file in files),
        groups=tuple(image.group for image in images) if "group" in roles else (),
        splits=tuple(image.split for image in images) if "split" in roles else (),
    )
