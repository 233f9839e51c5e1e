"""Test the listing of domains, classes and files."""

import os
from pathlib import Path

import pytest
from image_files import png, write_files, write_small_dataset
from torchvision.datasets import ImageFolder

from pogm._system.errors import DataError
from pogm.data.images.class_folders import FolderWarning, read_tree
from pogm.data.images.decode import IMAGE_SUFFIXES

PACS = Path(__file__).parents[4] / "shared" / "data" / "PACS"


def paths(root: Path) -> list[str]:
    return [file.path for file in read_tree(root).files]


def test_domains_and_union_of_classes_are_sorted(tmp_path):
    write_files(tmp_path, {"b/y/1.png": b"1", "b/x/1.png": b"1", "a/z/1.png": b"1", "a/x/2.png": b"1"})
    tree = read_tree(tmp_path)
    assert tree.domains == ("a", "b")
    assert tree.classes == ("x", "y", "z")
    assert tree.files == (("a/x/2.png", 0, 0), ("a/z/1.png", 0, 2), ("b/x/1.png", 1, 0), ("b/y/1.png", 1, 1))
    assert tree.counts == [[1, 1], [0, 1], [1, 0]]


def test_file_order_equals_torchvision_image_folder(tmp_path):
    odd = ["b.png", "a.png", "B.png", "10.png", "9.png", "a/z.png", "a b/c.png", "a/b/c.png", "a-/x.png", "é.png"]
    names = [f"{domain}/{kind}/{name}" for domain in ("photo", "art") for kind in ("dog", "Cat") for name in odd]
    write_files(tmp_path, dict.fromkeys(names, b"x"))
    expected = []
    for domain in ("art", "photo"):
        samples = ImageFolder(str(tmp_path / domain)).samples
        expected += [(os.path.relpath(path, tmp_path), label) for path, label in samples]
    assert [(file.path, file.label) for file in read_tree(tmp_path).files] == expected


def test_text_files_next_to_domains_and_classes_are_ignored(tmp_path):
    write_small_dataset(tmp_path)
    before = paths(tmp_path)
    write_files(tmp_path, {"README.txt": b"", "train.csv": b"", "art/list.txt": b""})
    assert paths(tmp_path) == before


def test_every_file_in_a_class_folder_is_listed(tmp_path):
    write_small_dataset(tmp_path)
    write_files(tmp_path, {"art/cat/notes.txt": b"no image"})
    assert "art/cat/notes.txt" in paths(tmp_path)


def test_unusual_file_names_are_kept(tmp_path):
    names = ["Real World/a b.png", "Real World/line\nbreak.png", "Real World/日本.png", "Real World/🦒.png"]
    write_files(tmp_path, {f"{domain}/{name}": b"x" for domain in ("x\ny", "é") for name in names})
    broken = os.fsencode(tmp_path) + b"/x\ny/Real World/\xff.png"
    Path(os.fsdecode(broken)).write_bytes(b"x")
    tree = read_tree(tmp_path)
    assert tree.domains == ("x\ny", "é")
    assert all((tmp_path / file.path).read_bytes() == b"x" for file in tree.files)
    assert len(tree.files) == 9
    assert "x\\ny" in tree.table()
    assert len(tree.table().splitlines()) == 3  # newlines in names are escaped
    tree.table().encode()


def test_equal_classes_give_no_warning(tmp_path):
    assert read_tree(write_small_dataset(tmp_path)).warning() is None


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({"art/bird/1.png": b"x"}, ["bird: missing from photo", "bird 1 -"]),
        ({"art/bird/1.png": b"x", "photo/bird/": b""}, ["bird: an empty folder in photo", "bird 1 0"]),
        ({"art/bird/": b"", "photo/bird/": b""}, ["bird: an empty folder in art, photo"]),
        ({"art/Dog/1.png": b"x"}, ["Dog: missing from photo; spelt like dog", "dog: spelt like Dog"]),
        ({"art/e\u0301/1.png": b"x", "photo/\u00e9/1.png": b"x"}, ["spelt like \u00e9", "spelt like e\u0301"]),
    ],
)
def test_warning_lists_classes_that_differ_with_counts(tmp_path, more, messages):
    warning = read_tree(write_files(write_small_dataset(tmp_path), more)).warning()
    assert isinstance(warning, FolderWarning)
    for words in messages:
        assert words in " ".join(str(warning).split())
    assert "cat" not in str(warning)  # a class without a problem


def test_table_is_aligned(tmp_path):
    write_files(tmp_path, {"a/giraffe/1.png": b"", "painting/giraffe/1.png": b"", "a/x/1.png": b""})
    assert read_tree(tmp_path).table() == (
        "class        a  painting\n"
        "giraffe      1         1\n"
        "x            1         -\n"
        "all classes  2         1"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": b""}, "two or more domains .* found none"),
        ({"art/cat/1.png": b""}, "two or more domains .* found only art"),
        ({"art/": b"", "photo/": b""}, "class folders .* found none"),
        ({"art/cat/": b"", "photo/cat/": b""}, "images in every domain .* none in art, photo"),
        ({"art/cat/1.png": b"", "photo/": b""}, "images in every domain .* none in photo"),
        ({"art/cat/1.png": b"", "photo/cat/1.png": b"", "1.JPG": b""}, r"found the image 1\.JPG\."),
        ({"cat/1.png": b"", "cat/2.png": b"", "dog/1.png": b""}, r"folders in .*cat; found the image 1.png and 1 more"),
    ],
)
def test_wrong_layout_is_refused(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        read_tree(write_files(tmp_path, files))


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_image_outside_of_class_folders_is_refused_whatever_its_format(tmp_path, suffix):
    write_files(write_small_dataset(tmp_path), {f"art/1{suffix}": b""})
    with pytest.raises(DataError, match=f"found the image 1{suffix}"):
        read_tree(tmp_path)


def test_missing_root_or_file_as_root_is_refused(tmp_path):
    with pytest.raises(DataError, match="found none"):
        read_tree(tmp_path / "missing")
    (tmp_path / "file").write_bytes(png())
    with pytest.raises(DataError, match="found none"):
        read_tree(tmp_path / "file")


@pytest.mark.skipif(not PACS.is_dir(), reason="needs PACS in shared/data")
def test_pacs_has_published_counts():
    tree = read_tree(PACS)
    assert tree.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert tree.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert [sum(column) for column in zip(*tree.counts, strict=True)] == [2048, 2344, 1670, 3929]
    assert tree.warning() is None


def test_progress_counts_class_folders_while_they_are_listed(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    shown = []

    def progress(items, total, what):
        for number, item in enumerate(items, start=1):
            yield item
            shown.append((number, total, what))

    assert read_tree(root, progress=progress) == read_tree(root)
    assert shown == [(number, 4, "folders") for number in range(1, 5)]
