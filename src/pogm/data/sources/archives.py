"""Unpacking other people's archives: plain files below the target, whole, or nothing."""

import gzip
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

from pogm._system.errors import IntegrityError, UsageError
from pogm._system.fault_injection import fault_point
from pogm.data.sources.staging import staged

MOST_MEMBERS = 2_000_000
MOST_BYTES = 200 << 30
MOST_RATIO = 1000  # unpacked to packed
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class Member:
    """One entry of an archive: what it calls itself, what it is, how long it says it is."""

    name: str
    kind: str  # "file", "folder", or what it should not be
    size: int
    open: Callable[[], IO[bytes]]  # its content, if it is a file


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive that can be unpacked."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def extract(archive: Path, target: Path) -> None:
    """Unpack a zip, tar, tar.gz or gz file into a new folder; refuse it if it is damaged or reaches for more.

    Every member is checked before the first is written, except that a single gz file does not say how long it is.
    """
    if not is_archive(archive):
        raise UsageError(
            f"Expected a file that ends with {', '.join(SUFFIXES)}; found {archive}, which is none. Unpack it yourself."
        )
    if target.exists():
        raise UsageError(f"Expected no {target} yet; found it. Move it away, or choose another folder.")
    with _damage_told(archive), _open(archive) as members:
        _check(archive, members)
    with staged(target) as folder, _damage_told(archive), _open(archive) as members:
        _write(archive, members, folder)


def _check(archive: Path, members: Iterator[Member]) -> None:
    total, packed = 0, archive.stat().st_size
    for count, member in enumerate(members, 1):
        total += member.size
        if member.kind not in ("file", "folder"):
            raise _refused(archive, f"{member.name!r}, a {member.kind}")
        if not _is_inside(member.name):
            raise _refused(archive, f"{member.name!r}, which is not a path below the target")
        if count > MOST_MEMBERS:
            raise _refused(archive, f"more than {MOST_MEMBERS} members")
        _check_size(archive, total, packed)


def _check_size(archive: Path, total: int, packed: int) -> None:
    if total > MOST_BYTES:
        raise _refused(archive, f"more than {MOST_BYTES} bytes")
    if total > MOST_RATIO * packed:
        raise _refused(archive, f"{total} bytes packed into {packed}, more than {MOST_RATIO} to one")


def _write(archive: Path, members: Iterator[Member], folder: Path) -> None:
    """Write what was checked, and count again: what a member says of its length need not be true."""
    packed, total = archive.stat().st_size, 0
    made: set[Path] = set()
    for member in members:
        place = folder / member.name
        home = place if member.kind == "folder" else place.parent
        if home not in made:
            home.mkdir(parents=True, exist_ok=True)
            made.add(home)
        if member.kind == "folder":
            continue
        fault_point("write")
        with member.open() as content, open(place, "wb") as file:
            while chunk := content.read(1 << 20):
                total += len(chunk)
                _check_size(archive, total, packed)
                file.write(chunk)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _refused(archive: Path, found: str) -> IntegrityError:
    return IntegrityError(
        f"Expected nothing but plain files and folders of sane size in {archive}; found {found}. "
        "Nothing was kept; get the archive from its authors."
    )


@contextmanager
def _damage_told(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise IntegrityError(
            f"Expected a whole archive; found {archive} damaged ({error}). Nothing was kept; get it again."
        ) from error


@contextmanager
def _open(archive: Path) -> Iterator[Iterator[Member]]:
    """The members, one after the other; the content of each is to be read before the next is asked for."""
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
        content: Any = gzip.open(archive)  # noqa: SIM115 - closed by whoever reads it, or below
        with content:
            yield iter([Member(name.removesuffix(".gz"), "file", 0, lambda: content)])


def _zip_kind(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive comes from a system without them
    if info.flag_bits & 1:
        return "file under a password"
    if info.is_dir() and kind in (0, stat.S_IFDIR):
        return "folder"
    if not info.is_dir() and kind in (0, stat.S_IFREG):
        return "file"
    return "symbolic link" if kind == stat.S_IFLNK else "device or pipe"


def _tar_members(tar: tarfile.TarFile) -> Iterator[Member]:
    opened: Any = tar
    while (info := tar.next()) is not None:
        yield Member(info.name, _tar_kind(info), info.size, partial(opened.extractfile, info))
        opened.members = []  # tarfile would remember two million of them


def _tar_kind(info: tarfile.TarInfo) -> str:
    kinds = {"file": info.isreg(), "folder": info.isdir(), "symbolic link": info.issym(), "hard link": info.islnk()}
    return next((kind for kind, true in kinds.items() if true), "device or pipe")
