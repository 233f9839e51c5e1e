"""Test the extraction of archives. Malicious archives are refused and leave no files."""

import contextlib
import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def pad(content):
    """Return the content filled to whole blocks of a tar file."""
    return content.ljust(-(-len(content) // 512) * 512, b"\0")


def tar_entry(name=b"first", kind=b"0", content=b"", size=None, **more):
    """Return the bytes of an entry of a tar file, with any name, type and size."""
    info = tarfile.TarInfo("P")
    info.size, info.type = len(content) if size is None else size, kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[:100] = name.ljust(100, b"\0")
    block[386 : 386 + len(more.get("sparse", b""))] = more.get("sparse", b"")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + pad(content)


def pax_entry(**attributes):
    """Return the bytes of extended attributes, followed by the member that they describe."""
    records = b""
    for name, value in attributes.items():
        record = b" " + name.replace("_", ".").encode() + b"=" + value + b"\n"
        length = len(record) + len(str(len(record) + 2))
        records += b"%d" % length + record
    return tar_entry(b"pax", tarfile.XHDTYPE, records) + tar_entry(content=b"1\n0\n")


def zip_file(name):
    """Return the bytes of a zip file with one member of any name, marked as UTF-8."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("é", b"x")
    content, placeholder = file.getvalue(), "é".encode()
    start = content.index(placeholder)
    local = content[:26] + len(name).to_bytes(2, "little") + content[28:start] + name
    central = content.index(b"PK\1\2")
    directory = content[central : central + 28] + len(name).to_bytes(2, "little") + content[central + 30 : central + 46]
    end = content.index(b"PK\5\6")
    body = local + content[start + 2 : central]
    size = len(directory + name)
    return (
        body
        + directory
        + name
        + content[end : end + 12]
        + size.to_bytes(4, "little")
        + len(body).to_bytes(4, "little")
        + b"\0\0"
    )


def lzma_zip(damage):
    """Return a zip file compressed by LZMA, with some bytes replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", os.urandom(500))
    content = bytearray(file.getvalue())
    content[damage] = bytes(byte ^ 0xFF for byte in content[damage])
    return bytes(content)


END = bytes(1024)
MALFORMED = {
    "empty name.zip": zip_file(b""),
    "only slashes.zip": zip_file(b"//"),
    "invalid utf-8.zip": zip_file(b"\xff\xfe"),
    "dot.zip": zip_file(b"."),
    "lzma header.zip": lzma_zip(slice(31, 36)),
    "lzma data.zip": lzma_zip(slice(60, 90)),
    "empty name.tar": tar_entry(b"") + END,
    "dot.tar": tar_entry(b".") + END,
    "invalid utf-8.tar": tar_entry(b"\xff\xfe") + END,
    "nul in path.tar": pax_entry(path=b"a\0b") + END,
    "invalid utf-8 in path.tar": pax_entry(path=b"\xff\xfe") + END,
    "bad header after the first.tar": tar_entry() + b"x" * 512 + END,
    "negative size.tar": tar_entry() + tar_entry(size=-1024) + END,
    "negative size of a long name.tar": tar_entry(b"n", tarfile.GNUTYPE_LONGNAME, size=-1024) + END,
    "size of a long name.tar": tar_entry(b"n", tarfile.GNUTYPE_LONGNAME, size=1 << 40) + END,
    "negative size by attribute.tar": pax_entry(size=b"-1024") + END,
    "sparse.tar": tar_entry(kind=tarfile.GNUTYPE_SPARSE, sparse=b"x" * 96) + END,
    "sparse map.tar": pax_entry(GNU_sparse_size=b"9", GNU_sparse_map=b"1,x,y") + END,
    "sparse map in data.tar": pax_entry(GNU_sparse_major=b"1", GNU_sparse_minor=b"0", GNU_sparse_realsize=b"x") + END,
    "file and folder.tar": tar_entry(b"a", content=b"x") + tar_entry(b"a/b", content=b"x") + END,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_archive_gives_one_error_and_no_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(MALFORMED[name])
    message = extract_error(path, tmp_path)
    assert message.startswith("Expected ")
    assert str(path) in message
    message.encode("utf-8")


def test_folder_of_the_target_itself_is_accepted(tmp_path):
    """``tar -c .`` writes it."""
    path = tmp_path / "x.tar"
    path.write_bytes(tar_entry(b"./", tarfile.DIRTYPE) + tar_entry(b"./a", content=b"x") + END)
    extract(path, tmp_path / "target")
    assert read_files(tmp_path / "target") == {"a": b"x"}


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_changed_bytes_give_an_integrity_error_or_the_same_files(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("changed")
    name, write = data.draw(st.sampled_from(WRITERS))
    path = write(root / name, GOOD)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(IntegrityError):
        extract(path, root / "target")
    assert {one.name for one in root.iterdir()} <= {name, "target"}
