"""Extraction of untrusted archives: all files below the target directory, or an error and nothing."""

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.fault_injection import fault_point
from pogm._system.files import TEMPORARY, lock_folder, sync_folder

MOST_MEMBERS = 2_000_000
MOST_BYTES = 200 << 30
MOST_RATIO = 1000  # unpacked bytes / packed bytes
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class Member:
    """One entry of an archive, as its header describes it."""

    name: str
    kind: str  # "file", "folder", or a kind that is refused
    size: int
    open: Callable[[], IO[bytes]]  # opens the content of a file


def is_archive(path: Path) -> bool:
    """Return True if the path is a file with the suffix of a supported archive."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def extract(archive: Path, target: Path) -> None:
    """Unpack a zip, tar, tar.gz or gz file into a new directory.

    All members are checked before the first is written. (A gz file does not state its size; it is checked on the way.)

    Raises:
        IntegrityError: If the archive is damaged, too large, or has links, devices or paths outside of the target.
        UsageError: If the file is not a supported archive, or the target exists.
    """
    if not is_archive(archive):
        raise UsageError(f"Expected a file that ends with {', '.join(SUFFIXES)}; found {archive}. Unpack it yourself.")
    if target.exists():
        raise UsageError(f"Expected that {target} does not exist; found it. Move it away, or choose another folder.")
    with _explain_damage(archive), _open(archive) as members:
        _check(archive, members)
    with stage_directory(target) as directory, _explain_damage(archive), _open(archive) as members:
        _write(archive, members, directory)


@contextmanager
def stage_directory(target: Path) -> Iterator[Path]:
    """Create a temporary directory, and rename it to the target when the block succeeds; delete it when it fails."""
    staging = target.with_name(f".{target.name}{TEMPORARY}")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with lock_folder(staging):
            made = staging / "made"
            if made.exists():  # left by a process that was killed
                shutil.rmtree(made)
            made.mkdir()
            try:
                yield made
                fault_point("replace")
                os.replace(made, target)
                sync_folder(target.parent)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"Expected to make {target}; found: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}. "
            "Nothing was kept. Free some space or permit writing, then try again."
        ) from error


def _check(archive: Path, members: Iterator[Member]) -> None:
    total, packed = 0, archive.stat().st_size
    for count, member in enumerate(members, 1):
        total += member.size
        if member.kind not in ("file", "folder"):
            raise _refusal(archive, f"{member.name!r}, a {member.kind}")
        if not _is_inside(member.name):
            raise _refusal(archive, f"{member.name!r}, which is not a path below the target")
        if count > MOST_MEMBERS:
            raise _refusal(archive, f"more than {MOST_MEMBERS} members")
        _check_size(archive, total, packed)


def _check_size(archive: Path, total: int, packed: int) -> None:
    if total > MOST_BYTES:
        raise _refusal(archive, f"more than {MOST_BYTES} bytes")
    if total > MOST_RATIO * packed:
        raise _refusal(archive, f"{total} bytes packed into {packed}, more than {MOST_RATIO} to one")


def _write(archive: Path, members: Iterator[Member], directory: Path) -> None:
    """Write the members, and count the bytes again, because the sizes in headers may be wrong."""
    packed, total = archive.stat().st_size, 0
    made: set[Path] = set()
    for member in members:
        path = directory / member.name
        parent = path if member.kind == "folder" else path.parent
        if parent not in made:
            parent.mkdir(parents=True, exist_ok=True)
            made.add(parent)
        if member.kind == "folder":
            continue
        fault_point("write")
        with member.open() as content, open(path, "wb") as file:
            while chunk := content.read(1 << 20):
                total += len(chunk)
                _check_size(archive, total, packed)
                file.write(chunk)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _refusal(archive: Path, found: str) -> IntegrityError:
    return IntegrityError(
        f"Expected only files and folders of reasonable size in {archive}; found {found}. "
        "Nothing was kept. Get the archive from its authors."
    )


@contextmanager
def _explain_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise IntegrityError(
            f"Expected a complete archive; found {archive} damaged ({error}). Nothing was kept. Get it again."
        ) from error


@contextmanager
def _open(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive as an iterator over its members. Read the content of each before the next one."""
    name = archive.name
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            yield (
                Member(info.filename, _zip_kind(info), info.file_size, partial(opened.open, info))
                for info in opened.infolist()
            )
    elif name.endswith((".tar", ".tar.gz", ".tgz")):
        with tarfile.open(archive, "r:" if name.endswith(".tar") else "r:gz") as tar:
            yield _tar_members(tar)
    else:
        content: Any = gzip.open(archive)  # noqa: SIM115 - closed by the reader, or below
        with content:
            yield iter([Member(name.removesuffix(".gz"), "file", 0, lambda: content)])


def _zip_kind(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive has no Unix file types
    if info.flag_bits & 1:
        return "file with a password"
    if info.is_dir() and kind in (0, stat.S_IFDIR):
        return "folder"
    if not info.is_dir() and kind in (0, stat.S_IFREG):
        return "file"
    return "symbolic link" if kind == stat.S_IFLNK else "device or pipe"


def _tar_members(tar: tarfile.TarFile) -> Iterator[Member]:
    opened: Any = tar
    while (info := tar.next()) is not None:
        yield Member(info.name, _tar_kind(info), info.size, partial(opened.extractfile, info))
        opened.members = []  # tarfile would keep all members in memory


def _tar_kind(info: tarfile.TarInfo) -> str:
    kinds = {"file": info.isreg(), "folder": info.isdir(), "symbolic link": info.issym(), "hard link": info.islnk()}
    return next((kind for kind, matches in kinds.items() if matches), "device or pipe")
