"""Test directory listings: links, hidden files, many files, and printable names."""

import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import write_files, write_small_dataset

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.data.images.class_folders import list_tree, read_tree
from pogm.data.images.listing import Walker


def paths(root: Path) -> list[str]:
    return [file.path for file in read_tree(root).files]


def walk_outside(root):
    """Return the files below a folder and the bad links, if links that lead out of it are followed."""
    walker = Walker(str(root), follow_outside=True)
    return [path.removeprefix("/") for path in walker.walk_files(walker.top)], walker.bad


def test_hidden_and_system_files_are_ignored(tmp_path):
    write_small_dataset(tmp_path)
    before = paths(tmp_path)
    left = [".DS_Store", "art/.DS_Store", "art/cat/.DS_Store", "art/cat/._0.png", "art/cat/Thumbs.db"]
    left += [".git/config/x.png", "art/.cache/x.png", "photo/dog/desktop.ini", "__MACOSX/art/cat/0.png"]
    write_files(tmp_path, dict.fromkeys(left, b"x"))
    assert paths(tmp_path) == before


def test_links_inside_root_are_followed(tmp_path):
    write_small_dataset(tmp_path)
    (tmp_path / "art/cat/more").symlink_to(tmp_path / "photo/cat")
    (tmp_path / "art/dog/one.png").symlink_to("0.png")
    found = paths(tmp_path)
    assert "art/cat/more/1.png" in found
    assert "art/dog/one.png" in found


@pytest.mark.parametrize("path", ["loop", "art/loop", "art/cat/loop", "art/cat/deep/er/loop"])
@pytest.mark.parametrize("target", ["root", "above", "itself", "ring"])
def test_link_loop_is_refused(tmp_path, path, target):
    root = write_small_dataset(tmp_path / "root")
    link = root / path
    link.parent.mkdir(parents=True, exist_ok=True)
    ring = link.with_name("ring")
    destination = {"root": root, "above": link.parent, "itself": link, "ring": ring}[target]
    link.symlink_to(destination)
    if target == "ring":
        ring.symlink_to(link)
    with pytest.raises(DataError, match=r"loop.* is a link that loops.*Remove"):
        read_tree(root)
    _, bad = walk_outside(root)
    assert any("is a link that loops" in reason for _, reason in bad)


def test_mutual_links_are_refused(tmp_path):
    write_small_dataset(tmp_path)
    (tmp_path / "art/cat/x").symlink_to(tmp_path / "photo/cat")
    (tmp_path / "photo/cat/y").symlink_to(tmp_path / "art/cat")
    with pytest.raises(DataError, match=r"art/cat/x/y is a link that loops; photo/cat/y/x is a link that loops"):
        read_tree(tmp_path)


@pytest.mark.parametrize("path", ["paint", "art/bird", "art/cat/more", "art/cat/one.png"])
def test_link_out_of_root_is_refused_by_default(tmp_path, path):
    root = write_small_dataset(tmp_path / "root")
    other = write_small_dataset(tmp_path / "root2")  # its path begins like that of the root
    inside = {"paint": "art", "art/bird": "art/cat", "art/cat/more": "art/cat", "art/cat/one.png": "art/cat/0.png"}
    (root / path).symlink_to(other / inside[path])
    with pytest.raises(DataError, match=rf"{path} is a link that leaves the folder.*put the images themselves there"):
        read_tree(root)
    with_more, _ = walk_outside(root)
    assert len(with_more) > 8
    assert any(file.startswith(path) for file in with_more)


def test_link_above_root_is_a_loop_even_if_outside_is_allowed(tmp_path):
    root = write_small_dataset(tmp_path / "root")
    (root / "art/cat/up").symlink_to(tmp_path)
    assert walk_outside(root)[1] == [("art/cat/up", "is a link that loops")]


def test_broken_links_and_pipes_are_refused(tmp_path):
    write_small_dataset(tmp_path)
    (tmp_path / "art/cat/gone.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "art/dog/pipe.png")
    with pytest.raises(DataError, match=r"gone.png is a link that leads nowhere.*pipe.png is neither a file nor"):
        read_tree(tmp_path)
    assert [link.path for link in list_tree(tmp_path).bad_links] == ["art/cat/gone.png", "art/dog/pipe.png"]


def test_root_may_be_a_link(tmp_path):
    write_small_dataset(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert paths(tmp_path / "link") == paths(tmp_path / "real")


class FakeEntry:
    """Directory entry of a file that does not exist."""

    def __init__(self, name: str):
        self.name = self.path = name

    def is_symlink(self) -> bool:
        return False

    def is_dir(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True


def test_many_files_are_listed_quickly_without_stat(tmp_path, monkeypatch):
    write_small_dataset(tmp_path)
    many = [FakeEntry(f"{number}.jpg") for number in range(100_000)]
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: nullcontext(many) if path.endswith("art/cat") else real(path))
    began = time.monotonic()
    assert len(read_tree(tmp_path).files) == 100_006
    assert time.monotonic() - began < 10  # ten times the time on a busy machine


@given(st.text(st.characters()))
def test_any_name_becomes_one_printable_line(name):
    assert len(printable(name).splitlines()) <= 1
    printable(name).encode()


def test_printable_names_are_unchanged():
    assert printable("Real World/ß 日本 🦒.jpg") == "Real World/ß 日本 🦒.jpg"
    assert printable("a\nb\udcff\x1b") == r"a\nb\udcff\x1b"
