"""Test the extraction of archives. Malicious archives are refused and leave no files."""

import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter

import pytest

from pogm._system import fault_injection
from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm.data.sources import archives
from pogm.data.sources.archives import extract

GOOD = {"top/a.jpg": b"a" * 3000, "top/deep/b.jpg": b"b", "c.txt": b""}


def write_zip(path, files, **kinds):
    """Write a zip file; `kinds` are the file types of some members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (kinds.get(name, stat.S_IFREG) | 0o644) << 16
            archive.writestr(info, content)
    return path


def write_tar(path, files, **kinds):
    """Write a tar file; `kinds` are the types of some members."""
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type = kinds.get(name, tarfile.REGTYPE)
            info.linkname = "/etc/hostname"
            info.size = len(content) if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return path


def read_files(folder):
    """Return the content of every file below, and None for every folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def extract_error(archive, root, kind=IntegrityError):
    """Return the message of the error; no file below the root may change."""
    before = read_files(root)
    with pytest.raises(kind) as caught:
        extract(archive, root / "parent" / "target")
    after = read_files(root)
    after.pop("parent", None)
    assert after == before
    return str(caught.value)


WRITERS = [("x.zip", write_zip), ("x.tar", write_tar), ("x.tar.gz", write_tar), ("x.tgz", write_tar)]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_valid_archive_is_extracted_without_leftovers(tmp_path, name, write):
    extract(write(tmp_path / name, GOOD), tmp_path / "parent" / "target")
    found = {path: content for path, content in read_files(tmp_path / "parent").items() if content is not None}
    assert found == {f"target/{path}": content for path, content in GOOD.items()}


def test_gzip_file_is_extracted_under_its_name(tmp_path):
    (tmp_path / "idx.gz").write_bytes(gzip.compress(b"numbers"))
    extract(tmp_path / "idx.gz", tmp_path / "target")
    assert read_files(tmp_path / "target") == {"idx": b"numbers"}


@pytest.mark.parametrize(("name", "write"), WRITERS)
@pytest.mark.parametrize("path", ["../x", "a/../../x", "{root}/escaped", "..", "a\\..\\x"])
def test_path_outside_of_target_is_refused(tmp_path, name, write, path):
    archive = write(tmp_path / name, {"first": b"fine", path.format(root=tmp_path): b"malicious"})
    assert "not a path below the target" in extract_error(archive, tmp_path)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
    ],
)
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_tar_with_links_or_devices_is_refused(tmp_path, name, kind, word):
    assert word in extract_error(write_tar(tmp_path / name, {"first": b"fine", "bad": b""}, bad=kind), tmp_path)


@pytest.mark.parametrize(("kind", "word"), [(stat.S_IFLNK, "symbolic link"), (stat.S_IFCHR, "device")])
def test_zip_with_links_or_devices_is_refused(tmp_path, kind, word):
    assert word in extract_error(
        write_zip(tmp_path / "x.zip", {"first": b"fine", "bad": b"/etc/hostname"}, bad=kind), tmp_path
    )


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_too_many_members_are_refused_before_writing(tmp_path, name, write, monkeypatch):
    archive = write(tmp_path / name, {f"{number}": b"" for number in range(11)})
    monkeypatch.setattr(archives, "MOST_MEMBERS", 11)
    extract(archive, tmp_path / "fits")
    monkeypatch.setattr(archives, "MOST_MEMBERS", 10)
    monkeypatch.setattr(archives, "_write", lambda *_: pytest.fail("written"))
    assert "more than 10 members" in extract_error(archive, tmp_path)


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_too_many_bytes_are_refused_before_writing(tmp_path, name, write, monkeypatch):
    archive = write(tmp_path / name, {"a": b"12345", "b": b"67890"})
    monkeypatch.setattr(archives, "MOST_BYTES", 10)
    extract(archive, tmp_path / "fits")
    monkeypatch.setattr(archives, "MOST_BYTES", 9)
    monkeypatch.setattr(archives, "_write", lambda *_: pytest.fail("written"))
    assert "more than 9 bytes" in extract_error(archive, tmp_path)


@pytest.mark.parametrize(("name", "write"), [WRITERS[0], WRITERS[2]])
def test_archive_bomb_is_refused(tmp_path, name, write):
    archive = write(tmp_path / name, {"zeros": bytes(8 << 20)})
    assert "more than 1000 to one" in extract_error(archive, tmp_path)


def test_gzip_bomb_is_refused(tmp_path):
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    assert "more than 1000 to one" in extract_error(tmp_path / "zeros.gz", tmp_path)


def test_zip_member_longer_than_its_header_is_refused(tmp_path):
    archive = write_zip(tmp_path / "x.zip", {"liar": b"x" * 5000})
    content = archive.read_bytes()
    archive.write_bytes(content.replace((5000).to_bytes(4, "little"), (50).to_bytes(4, "little")))
    assert "damaged" in extract_error(archive, tmp_path)


def test_encrypted_zip_is_refused(tmp_path):
    archive = write_zip(tmp_path / "x.zip", {"secret": b"x"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert "with a password" in extract_error(archive, tmp_path)


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_truncated_archive_is_refused_and_nothing_is_kept(tmp_path, name, write):
    noise = b"".join(zlib.crc32(bytes([i % 251, i // 251])).to_bytes(4, "big") for i in range(20000))
    archive = write(tmp_path / name, {"first": b"fine", "long": noise})
    archive.write_bytes(archive.read_bytes()[: len(noise) // 2])
    assert "damaged" in extract_error(archive, tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.gz"])
def test_file_that_is_not_an_archive_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"<html>not found</html>" * 100)
    assert "damaged" in extract_error(tmp_path / name, tmp_path)


def test_full_disk_leaves_no_partial_extraction(tmp_path, monkeypatch):
    archive = write_zip(tmp_path / "x.zip", GOOD)
    monkeypatch.setattr(fault_injection, "_passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:2")
    assert "No space left" in extract_error(archive, tmp_path, DataError)


def test_leftovers_of_killed_process_are_removed(tmp_path):
    left = tmp_path / ".target.part" / "made"
    left.mkdir(parents=True)
    (left / "half.jpg").write_bytes(b"ha")
    extract(write_zip(tmp_path / "x.zip", {"a": b"1"}), tmp_path / "target")
    assert read_files(tmp_path / "target") == {"a": b"1"}
    assert sorted(os.listdir(tmp_path)) == ["target", "x.zip"]


def test_existing_target_is_not_changed(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_bytes(b"mine")
    with pytest.raises(UsageError, match="does not exist; found it"):
        extract(write_zip(tmp_path / "x.zip", GOOD), tmp_path / "target")
    assert read_files(tmp_path / "target") == {"mine": b"mine"}


def test_unsupported_archive_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"x\.rar"):
        extract(tmp_path / "x.rar", tmp_path / "target")
