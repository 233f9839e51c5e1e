"""One published file: its name, where it can be had, and how to know it."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A file somebody else publishes. ``None`` says that nobody has published the figure."""

    name: str
    mirrors: tuple[str, ...]  # addresses of the same file, the best first
    page: str  # for people: where it is described, offered and under which terms
    sha256: str | None = None
    unpacked: bool = False  # the hash is that of the unpacked content: the same data, whoever zipped it
    size: int | None = None  # bytes


def hash_of(path: Path, *, unpacked: bool = False) -> str:
    """The SHA-256 of a file, or of what a gzip file holds, in hexadecimal; a damaged gzip file has none ("")."""
    if not unpacked:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    hashed = hashlib.sha256()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(1 << 20):
                hashed.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""
    return hashed.hexdigest()
