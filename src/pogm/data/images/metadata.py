"""Datasets that a metadata file describes: a table with one row per image, as CSV or TSV.

The columns ``path``, ``label`` and ``domain`` are required; ``group`` and ``split`` are optional. Other names are found
if they are usual (see `USUAL`) or given. A path is relative to the folder of the metadata file. A dataset is named by
its path, with options after a colon: ``sites/metadata.csv:label=y,domain=hospital,group=patient``.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pogm._system.errors import DataError, UsageError, unknown_name_error
from pogm._system.terminal import printable
from pogm.data.images.class_folders import ImageFile, ImageTree, check_domains, list_tree, map_classes, read_tree
from pogm.data.images.parallel import Progress, no_progress
from pogm.data.tables.reading import TableRow, read_rows

TABLES = (".csv", ".tsv")
ARRAY_FILES = (".npz", ".parquet", ".pq")  # files of samples that are not images, see `pogm.data.tables`
TABLE_OPTIONS = ("drop", "kind", "task")  # options of such files, and of tables, besides the columns
CLASSES = "classes.csv"  # class mapping in the folder of a dataset, if its columns are from and to
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


def is_table(path: Path | str) -> bool:
    """Return True if the name is that of a metadata file."""
    return str(path).lower().endswith(TABLES)


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """Split the name of a dataset into its path and its options.

    Names of columns may contain commas and colons: text after a comma that has no ``=`` belongs to the value before it.

    Example:
        >>> split_options("sites/metadata.csv:label=y,group=patient")
        ('sites/metadata.csv', {'label': 'y', 'group': 'patient'})
        >>> split_options("patients.csv:label=chol, mg/dl,drop=thal:1")
        ('patients.csv', {'label': 'chol, mg/dl', 'drop': 'thal:1'})

    Raises:
        UsageError: If an option is unknown, given twice or has no value.
    """
    found = list(re.finditer(r":(?=\w+=)", text))
    if not found:
        return text, {}
    path, rest = text[: found[-1].start()], text[found[-1].end() :]
    options: dict[str, str] = {}
    known = ("classes", *USUAL, *TABLE_OPTIONS) if is_table(path) else ("classes",)
    if path.lower().endswith(ARRAY_FILES):
        known = (*(role for role in USUAL if role != "path"), *TABLE_OPTIONS)
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if options and not equals and part not in known:
            options[next(reversed(options))] += f",{part}"
            continue
        if name not in known:
            kind = "an option of an image folder"
            if is_table(path) or path.lower().endswith(ARRAY_FILES):
                kind = f"an option of a {'metadata file' if is_table(path) else 'file of arrays'}"
            raise unknown_name_error(kind, name, known)
        if not equals or not value or name in options:
            raise UsageError(f"Expected {name}=VALUE once after the colon; found {text!r}. Write it once.")
        options[name] = value
    return path, options


def add_options(text: str, **options: str | None) -> str:
    """Return the name of a dataset with more options; options that are None are left out."""
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    if not given:
        return text
    if not split_options(text)[0].lower().endswith((*TABLES, *ARRAY_FILES)):
        raise UsageError(
            f"Expected a metadata file for {', '.join(given)}; found {text}. List the images in a file with the "
            "columns path, label, domain and group, and give its path."
        )
    return f"{text}{',' if split_options(text)[1] else ':'}{','.join(given)}"


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
        for role, name in _find_columns(path, header.cells, options).items():
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


def _find_columns(path: Path, header: list[str], given: Mapping[str, str]) -> dict[str, str]:
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
    chosen = _find_columns(path, header, columns or {})
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
