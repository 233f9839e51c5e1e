"""Extraction of untrusted archives: all files below the target directory, or an error and nothing."""

import errno
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn, Self

from pogm._system.errors import DataError, IntegrityError, PogmError, UsageError, shorten
from pogm._system.fault_injection import fault_point
from pogm._system.files import TEMPORARY, lock_folder, sync_folder

MOST_MEMBERS = 2_000_000
MOST_BYTES = 200 << 30
MOST_RATIO = 1000  # unpacked bytes / packed bytes
MOST_HEADER_BYTES = 1 << 20  # of a long name or of the extended attributes of a member of a tar file
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")
SIGNATURES = {".zip": b"PK", ".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b"}  # first bytes
DAMAGE_NUMBERS = (  # of system errors that the content of an archive causes
    None,  # damaged gzip or bzip2 data
    errno.EINVAL,  # a negative position in the archive
    errno.ENAMETOOLONG,
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR),  # a member is a file and a folder
)
TAR_HEADERS = (  # types of entries that describe the next member
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


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


def has_signature(path: Path, name: str) -> bool:
    """Return False if a file does not begin like an archive of this name, but for example like a web page."""
    expected = SIGNATURES.get(PurePosixPath(name).suffix, b"")
    with open(path, "rb") as file:
        return file.read(len(expected)) == expected


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
            raise _refusal(archive, f"{shorten(member.name)}, a {member.kind}")
        if not _is_inside(member):
            raise _refusal(archive, f"{shorten(member.name)}, which is not a path below the target")
        if member.size < 0:
            raise _refusal(archive, f"{shorten(member.name)}, a file of {member.size} bytes")
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


def _is_inside(member: Member) -> bool:
    name, path = member.name, PurePosixPath(member.name)
    is_named = bool(path.parts) or (member.kind == "folder" and name.startswith("."))  # many archives begin with "./"
    is_text = "\0" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)  # or invalid UTF-8
    return is_named and is_text and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _refusal(archive: Path, found: str) -> IntegrityError:
    return IntegrityError(
        f"Expected only files and folders of reasonable size in {archive}; found {found}. "
        "Nothing was kept. Get the archive from its authors."
    )


@contextmanager
def _explain_damage(archive: Path) -> Iterator[None]:
    """Convert all errors of a damaged or manipulated archive to one; those of the disk stay as they are."""
    try:
        yield
    except PogmError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in DAMAGE_NUMBERS:
            raise
        reason = str(error) or type(error).__name__
        raise IntegrityError(
            f"Expected a complete archive; found {archive} damaged ({reason}). Nothing was kept. Get it again."
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
        with tarfile.open(archive, "r:" if name.endswith(".tar") else "r:gz", tarinfo=PlainTarInfo) as tar:
            yield _tar_members(tar)
    else:
        content: Any = gzip.open(archive)  # noqa: SIM115 - closed by the reader, or below
        with content:
            yield iter([Member(name.removesuffix(".gz"), "file", 0, lambda: content)])


def _zip_kind(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive has no Unix file types
    if info.flag_bits & 1:
        return "file with a password"
    is_folder = info.filename.endswith("/")
    if is_folder and kind in (0, stat.S_IFDIR):
        return "folder"
    if not is_folder and kind in (0, stat.S_IFREG):
        return "file"
    return "symbolic link" if kind == stat.S_IFLNK else "device or pipe"


class PlainTarInfo(tarfile.TarInfo):
    """Header in a tar file, which must be valid. tarfile takes an invalid one for the end of the archive.

    Sparse files and large headers are refused: some make tarfile run or allocate memory without end.
    """

    @classmethod
    def fromtarfile(cls, tar: Any) -> Self:
        """Read the next header."""
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error

    def _proc_member(self, tar: Any) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        if self.size < 0 or (self.type in TAR_HEADERS and self.size > MOST_HEADER_BYTES):
            raise tarfile.ReadError(f"a header with a size of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]

    def _refuse_sparse(self, *_: Any) -> NoReturn:
        raise tarfile.ReadError("a sparse file")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _tar_members(tar: tarfile.TarFile) -> Iterator[Member]:
    opened: Any = tar
    while (info := tar.next()) is not None:
        yield Member(info.name, _tar_kind(info), info.size, partial(opened.extractfile, info))
        opened.members = []  # tarfile would keep all members in memory


def _tar_kind(info: tarfile.TarInfo) -> str:
    kinds = {"file": info.isreg(), "folder": info.isdir(), "symbolic link": info.issym(), "hard link": info.islnk()}
    return next((kind for kind, matches in kinds.items() if matches), "device or pipe")
