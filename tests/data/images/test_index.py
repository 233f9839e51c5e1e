"""Test the index of image files and its fingerprint."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from image_files import encode, picture, png, write_files, write_small_dataset

from pogm._system.files import digest
from pogm.data.images import index, store
from pogm.data.images.class_folders import read_tree
from pogm.data.images.index import FileRecord, fingerprint, read_index, scan_folder


@pytest.fixture
def read(monkeypatch):
    """Names of the files that are read."""
    names = []
    real = index._read
    monkeypatch.setattr(index, "_read", lambda root, name: names.append(name) or real(root, name))
    return names


def index_by_path(root: Path, cache: Path) -> dict[str, FileRecord]:
    tree = read_tree(root)
    return {file.path: record for file, record in zip(tree.files, read_index(tree, cache), strict=True)}


def test_record_has_hash_and_size_or_reason(tmp_path):
    files = {
        "a/x/1.png": png(1, 3, 5),
        "a/x/2.jpg": b"",
        "b/x/1.gif": b"words",
        "b/x/2.webp": encode(picture(), "WEBP"),
    }
    found = index_by_path(write_files(tmp_path / "data", files), tmp_path)
    assert found["a/x/1.png"] == FileRecord(digest(png(1, 3, 5)), 3, 5, None, "")
    assert found["a/x/2.jpg"] == FileRecord(digest(b""), kind="empty", reason="no bytes")
    assert found["b/x/1.gif"].kind == "not an image"
    assert (found["b/x/2.webp"].height, found["b/x/2.webp"].width) == (6, 8)


def test_unchanged_files_are_not_read_again(tmp_path, read):
    root = write_small_dataset(tmp_path / "data")
    write_files(root, {"art/cat/line\nbreak.png": png(9), "art/cat/bad.png": b"bad"})
    Path(os.fsdecode(os.fsencode(root) + b"/art/cat/\xff.png")).write_bytes(png(10))
    first = index_by_path(root, tmp_path)
    assert len(read) == 11
    read.clear()
    assert index_by_path(root, tmp_path) == first
    assert read == []


def test_only_changed_files_are_read_again(tmp_path, read):
    root = write_small_dataset(tmp_path / "data")
    before = index_by_path(root, tmp_path)
    read.clear()
    write_files(root, {"art/cat/0.png": png(50), "art/cat/new.png": png(51)})
    (root / "photo/dog/1.png").unlink()
    after = index_by_path(root, tmp_path)
    assert sorted(read) == ["art/cat/0.png", "art/cat/new.png"]
    assert after["art/cat/0.png"].sha256 == digest(png(50))
    assert before.keys() - after.keys() == {"photo/dog/1.png"}


def test_replaced_file_of_same_size_and_mtime_is_read_again(tmp_path):
    root = write_files(
        tmp_path / "data", {"a/x/1.bmp": encode(picture(1), "BMP"), "b/x/1.bmp": encode(picture(2), "BMP")}
    )
    other = tmp_path / "other.bmp"
    other.write_bytes(encode(picture(3), "BMP"))
    for path in (other, root / "a/x/1.bmp"):
        os.utime(path, ns=(10**18, 10**18))
    index_by_path(root, tmp_path)
    os.replace(other, root / "a/x/1.bmp")
    assert index_by_path(root, tmp_path)["a/x/1.bmp"].sha256 == digest(encode(picture(3), "BMP"))


@pytest.mark.parametrize("damage", [b"", b"[]", b"1 00\n[]", "cut", "flip"])
def test_damaged_index_is_rebuilt(tmp_path, read, damage):
    root = write_small_dataset(tmp_path / "data")
    first = index_by_path(root, tmp_path)
    (path,) = (tmp_path / "indexes").glob("*.json")
    content = path.read_bytes()
    flipped = content.replace(first["art/cat/0.png"].sha256.encode(), b"0" * 64)
    path.write_bytes({"cut": content[:-40], "flip": flipped}.get(damage, damage))
    read.clear()
    assert index_by_path(root, tmp_path) == first
    assert len(read) == 8
    assert path.read_bytes() == content


def test_interrupted_index_keeps_files_read_so_far(tmp_path, read, monkeypatch):
    tree = read_tree(write_small_dataset(tmp_path / "data"))

    def stop(items, total, **_):
        assert total == 8
        for number, item in enumerate(items):
            if number == 3:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        read_index(tree, tmp_path, stop)
    read.clear()
    read_index(tree, tmp_path)
    assert sorted(read) == [file.path for file in tree.files[3:]]


def test_concurrent_indexing_gives_same_index(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "POLL_SECONDS", 0.001)
    tree = read_tree(write_small_dataset(tmp_path / "data"))
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: read_index(tree, tmp_path), range(8))
    assert others == [first] * 7


def test_unreadable_file_is_bad_and_read_again_next_time(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    tree = read_tree(root)
    (root / "art/cat/0.png").unlink()
    assert read_index(tree, tmp_path)[0] == FileRecord("", kind="unreadable", reason="No such file or directory")
    write_files(root, {"art/cat/0.png": png(7)})
    assert read_index(tree, tmp_path)[0].sha256 == digest(png(7))


def test_fingerprint_does_not_depend_on_path_or_file_names(tmp_path):
    first = read_tree(write_small_dataset(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.rename(tmp_path / "two/art/cat/1.png", tmp_path / "two/art/cat/2.jpeg")  # other names, but the same order
    second = read_tree(tmp_path / "two")
    assert fingerprint(first, read_index(first, tmp_path)) == fingerprint(second, read_index(second, tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "art/cat/0.png").unlink(),
        lambda root: write_files(root, {"art/cat/9.png": png(9)}),
        lambda root: write_files(root, {"art/cat/0.png": png(9)}),
        lambda root: os.rename(root / "art/cat/0.png", root / "art/dog/9.png"),
        lambda root: os.rename(root / "art/cat/0.png", root / "photo/cat/9.png"),
        lambda root: os.rename(root / "art/cat", root / "art/bird"),
        lambda root: os.rename(root / "art/cat/0.png", root / "art/cat/9.png"),  # another order
    ],
    ids=["removed", "added", "changed", "other class", "other domain", "class renamed", "order"],
)
def test_fingerprint_depends_on_images_classes_domains_and_order(tmp_path, monkeypatch, change):
    monkeypatch.setenv("POGM_CACHE", str(tmp_path))
    root = write_small_dataset(tmp_path / "data")
    before = scan_folder(root).fingerprint
    assert scan_folder(root).fingerprint == before
    change(root)
    assert scan_folder(root).fingerprint != before
