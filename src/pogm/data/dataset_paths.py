"""Paths of datasets, with options after a colon: ``sites/metadata.csv:label=y,domain=hospital,group=patient``."""

import re
from pathlib import Path

from pogm._system.errors import UsageError, unknown_name_error
from pogm.data.images.metadata import USUAL

TABLES = (".csv", ".tsv")
ARRAY_FILES = (".npz", ".parquet", ".pq")  # files of samples that are not images, see `pogm.data.tables`
TABLE_OPTIONS = ("drop", "kind", "task")  # options of such files, and of tables, besides the columns


def is_table(path: Path | str) -> bool:
    """Return True if the name is that of a metadata file."""
    return str(path).lower().endswith(TABLES)


def is_file_name(path: str) -> bool:
    """Return True if the name is that of a metadata file, a table or a file of arrays, and not of a folder."""
    return path.lower().endswith((*TABLES, *ARRAY_FILES))


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
    kind: str = "an image folder"
    known: tuple[str, ...] = ("classes",)
    if is_table(path):
        kind, known = "a metadata file", ("classes", *USUAL, *TABLE_OPTIONS)
    elif is_file_name(path):
        kind, known = "a file of arrays", (*(role for role in USUAL if role != "path"), *TABLE_OPTIONS)
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if options and not equals and part not in known:
            options[next(reversed(options))] += f",{part}"
            continue
        if name not in known:
            raise unknown_name_error(f"an option of {kind}", name, known)
        if not equals or not value or name in options:
            raise UsageError(f"Expected {name}=VALUE once after the colon; found {text!r}. Write it once.")
        options[name] = value
    return path, options


def add_options(text: str, **options: str | None) -> str:
    """Return the name of a dataset with more options; options that are None are left out."""
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    if not given:
        return text
    path, before = split_options(text)
    if not is_file_name(path):
        raise UsageError(
            f"Expected a metadata file for {', '.join(given)}; found {text}. List the images in a file with the "
            "columns path, label, domain and group, and give its path."
        )
    return f"{text}{',' if before else ':'}{','.join(given)}"
