"""Test the cache of decoded images."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import processes
import pytest
import torch
from image_files import encode, picture, png, write_files, write_small_dataset
from PIL import Image

from pogm._system import fault_injection
from pogm._system.errors import DataError, UsageError
from pogm._system.files import digest
from pogm.data.images import cache, store
from pogm.data.images.cache import CachedImages, load_cached
from pogm.data.images.class_folders import read_tree
from pogm.data.images.decode import decode
from pogm.data.images.index import read_index

_context = processes.CONTEXT


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Do not wait for the disk: a test cannot simulate a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def decoded(monkeypatch):
    """Names of the files that are decoded."""
    names = []
    monkeypatch.setattr(
        cache, "decode", lambda content, name, **how: names.append(name) or decode(content, name, **how)
    )
    return names


def load(root: Path, cache_root: Path, how: str = "refuse") -> CachedImages:
    return load_cached(read_tree(root), how, cache=cache_root)


def find_store(cache_root: Path) -> Path:
    (found,) = (cache_root / "images").iterdir()
    return found


def assert_same(left: CachedImages, right: CachedImages) -> None:
    assert torch.equal(left.images, right.images)
    assert torch.equal(left.sizes, right.sizes)
    assert (left.kept, left.bad) == (right.kept, right.bad)


def test_small_images_of_one_size_are_stored_unchanged_in_order(tmp_path):
    found = load(write_small_dataset(tmp_path / "data"), tmp_path)
    assert found.images.dtype == torch.uint8
    assert found.images.shape == (8, 3, 6, 8)
    for seed in range(8):
        np.testing.assert_array_equal(found.images[seed].permute(1, 2, 0), picture(seed))
    assert found.sizes.dtype == torch.int64
    assert found.sizes.tolist() == [[6, 8]] * 8
    assert (found.kept, found.bad) == (list(range(8)), [])


@pytest.mark.parametrize("sizes", [[(6, 8), (8, 6)], [(300, 20), (300, 20)], [(256, 256), (257, 256)]])
def test_other_images_are_resized_to_256_like_pillow_bilinear(tmp_path, sizes):
    pixels = [picture(seed, *size) for seed, size in enumerate(sizes)]
    root = write_files(tmp_path / "data", {f"{n}/x/1.png": encode(image) for n, image in enumerate(pixels)})
    found = load(root, tmp_path)
    assert found.images.shape == (2, 3, 256, 256)
    assert found.sizes.tolist() == [list(size) for size in sizes]
    for number, image in enumerate(pixels):
        expected = Image.fromarray(image).resize((256, 256), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(found.images[number].permute(1, 2, 0), np.asarray(expected))


def test_images_of_one_size_of_256_are_not_resized(tmp_path):
    files = {"a/x/1.png": png(1, 256, 100), "b/x/1.png": png(2, 256, 100)}
    assert load(write_files(tmp_path / "data", files), tmp_path).images.shape == (2, 3, 256, 100)


def test_sizes_are_after_exif_rotation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {f"{domain}/x/1.png": encode(picture(1, 4, 9), exif=exif) for domain in "ab"}
    found = load(write_files(tmp_path / "data", files), tmp_path)
    assert found.images.shape == (2, 3, 9, 4)
    assert found.sizes.tolist() == [[9, 4]] * 2


def test_second_load_decodes_nothing_and_is_equal(tmp_path, decoded):
    root = write_small_dataset(tmp_path / "data")
    first = load(root, tmp_path)
    assert len(decoded) == 8
    assert_same(load(root, tmp_path), first)
    assert len(decoded) == 8


def test_images_are_mapped_and_changes_do_not_reach_the_file(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    first = load(root, tmp_path)
    content = (find_store(tmp_path) / "pixels").read_bytes()
    assert content == first.images.numpy().tobytes()
    assert str(find_store(tmp_path) / "pixels") in Path("/proc/self/maps").read_text()
    first.images.zero_()
    assert (find_store(tmp_path) / "pixels").read_bytes() == content
    assert load(root, tmp_path).images.any()


def test_folders_with_same_images_share_cache(tmp_path, decoded):
    write_small_dataset(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.rename(tmp_path / "two/art", tmp_path / "two/Art")
    assert_same(load(tmp_path / "one", tmp_path), load(tmp_path / "two", tmp_path))
    assert len(decoded) == 8
    assert find_store(tmp_path)


def test_changed_image_or_order_makes_another_cache_entry(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    load(root, tmp_path)
    write_files(root, {"art/cat/1.png": png(77)})
    np.testing.assert_array_equal(load(root, tmp_path).images[1].permute(1, 2, 0), picture(77))
    os.rename(root / "art/cat/0.png", root / "art/cat/9.png")
    np.testing.assert_array_equal(load(root, tmp_path).images[0].permute(1, 2, 0), picture(77))
    assert len(list((tmp_path / "images").iterdir())) == 3


CUT = encode(picture(5, 40, 60), "JPEG")[:1500]


def test_renamed_image_is_not_decoded_again(tmp_path, decoded):
    root = write_small_dataset(tmp_path / "data")
    load(root, tmp_path / "cache")
    decoded.clear()
    os.rename(root / "art/cat/0.png", root / "photo/dog/9.png")
    found = load(root, tmp_path / "cache")
    assert decoded == []
    assert_same(found, load(root, tmp_path / "new"))


@pytest.mark.parametrize("how", ["skip", "pad"])
def test_changed_folder_decodes_only_new_images(tmp_path, decoded, how):
    root = write_small_dataset(tmp_path / "data", height=40, width=60)
    bad = {"art/cat/+.jpg": CUT} if how == "pad" else {"art/cat/+.png": png(5)[:90], "art/dog/+.jpg": b""}
    write_files(root, bad)
    load(root, tmp_path / "cache", how)
    decoded.clear()
    (root / "art/cat/0.png").unlink()
    os.rename(root / next(iter(bad)), root / "photo/dog/z.jpg")
    write_files(root, {"photo/cat/9.png": png(77, 40, 60)})
    found = load(root, tmp_path / "cache", how)
    assert decoded == ["photo/cat/9.png"]
    assert found.bad[-1].path == "photo/dog/z.jpg"
    assert_same(found, load(root, tmp_path / "new", how))


@pytest.mark.parametrize("damage", ["contents.json", "journal", "pixels"])
def test_damaged_entry_is_not_copied_from(tmp_path, decoded, damage):
    root = write_small_dataset(tmp_path / "data")
    load(root, tmp_path / "cache")
    path = find_store(tmp_path / "cache") / damage
    content = path.read_bytes()
    first, second = (digest(png(seed)).encode() for seed in (0, 1))
    swapped = content.replace(first, b"?").replace(second, first).replace(b"?", second)
    path.write_bytes(swapped if damage == "contents.json" else content[:-1])
    decoded.clear()
    os.rename(root / "art/cat/0.png", root / "art/cat/9.png")
    found = load(root, tmp_path / "cache")
    assert len(decoded) == 8
    assert_same(found, load(root, tmp_path / "new"))


def test_entry_of_other_size_is_not_copied_from(tmp_path, decoded):
    root = write_small_dataset(tmp_path / "data")
    load(root, tmp_path)
    decoded.clear()
    write_files(root, {"art/cat/9.png": png(9, 5, 5)})  # now images of two sizes are resized to 256
    assert load(root, tmp_path).images.shape == (9, 3, 256, 256)
    assert len(decoded) == 9


def test_copying_build_continues_after_it_was_stopped(tmp_path, decoded, monkeypatch):
    monkeypatch.setattr(cache, "COPIES", 3)
    root = write_small_dataset(tmp_path / "data")
    load(root, tmp_path / "cache")
    os.rename(root / "art/cat/0.png", root / "art/cat/9.png")
    fault_injection._passed.clear()
    monkeypatch.setenv("POGM_FAULT", "full@journal:2")
    with pytest.raises(DataError, match="No space left"):
        load(root, tmp_path / "cache")
    monkeypatch.delenv("POGM_FAULT")
    decoded.clear()
    found = load(root, tmp_path / "cache")
    assert decoded == []
    assert_same(found, load(root, tmp_path / "new"))


def test_refused_images_are_named_with_reasons_and_advice(tmp_path):
    root = write_files(write_small_dataset(tmp_path / "data"), {f"art/cat/{n}\n.jpg": b"" for n in range(7)})
    message = r"art/cat/0\\n.jpg \(empty: no bytes\);.*and 2 more.*`pogm data check`.*--on-bad-image skip"
    with pytest.raises(DataError, match=message):
        load(root, tmp_path)
    assert not (tmp_path / "images").exists()


def test_damage_behind_intact_header_is_refused(tmp_path):
    root = write_files(write_small_dataset(tmp_path / "data"), {"art/cat/cut.jpg": CUT})
    for _ in range(2):
        with pytest.raises(DataError, match=r"found art/cat/cut.jpg \(truncated: image file.*--on-bad-image skip"):
            load(root, tmp_path)


def test_skipped_images_are_left_out_and_listed(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    write_files(root, {"art/cat/+.jpg": b"", "art/dog/+.png": png(5)[:90], "photo/dog/z.txt": b"words"})
    for _ in range(2):  # built the first time, opened the second
        found = load(root, tmp_path, "skip")
        assert [(bad.path, bad.kind) for bad in found.bad] == [
            ("art/cat/+.jpg", "empty"),
            ("art/dog/+.png", "truncated"),
            ("photo/dog/z.txt", "not an image"),
        ]
        assert found.kept == [1, 2, 4, 5, 6, 7, 8, 9] == sorted(found.kept)
        assert len(found.images) == len(found.sizes) == 8
        for seed, image in enumerate(found.images):
            np.testing.assert_array_equal(image.permute(1, 2, 0), picture(seed))


def test_padded_images_are_kept_and_listed(tmp_path):
    root = write_files(write_small_dataset(tmp_path / "data", height=40, width=60), {"art/cat/2.jpg": CUT})
    found = load(root, tmp_path, "pad")
    assert [(bad.path, bad.kind) for bad in found.bad] == [("art/cat/2.jpg", "truncated")]
    assert found.kept == list(range(9))
    np.testing.assert_array_equal(found.images[2].permute(1, 2, 0), decode(CUT, "x", truncated="pad"))


@pytest.mark.parametrize("content", [b"", b"words", png()[:30], encode(picture(), "WEBP")[:30]])
def test_pad_refuses_images_that_cannot_be_padded(tmp_path, content):
    root = write_files(write_small_dataset(tmp_path / "data"), {"art/cat/bad.jpg": content})
    with pytest.raises(DataError, match=r"art/cat/bad.jpg"):
        load(root, tmp_path, "pad")


def test_each_on_bad_image_option_has_its_own_cache_entry(tmp_path):
    root = write_small_dataset(tmp_path / "data")
    for how in cache.ON_BAD_IMAGE:
        load(root, tmp_path, how)
    assert len(list((tmp_path / "images").iterdir())) == 3
    with pytest.raises(UsageError, match="Did you mean 'skip'"):
        load(root, tmp_path, "skipp")


@pytest.mark.parametrize("content", [b"", png(0, 40, 60)[:900]])
def test_folder_without_decodable_image_is_refused(tmp_path, content):
    root = write_files(tmp_path / "data", {"a/x/1.png": content, "b/x/1.png": content})
    with pytest.raises(DataError, match=r"found none that can be .*pogm data check"):
        load(root, tmp_path, "skip")


def test_file_changed_between_index_and_decoding_is_refused(tmp_path):
    tree = read_tree(write_small_dataset(tmp_path / "data"))
    index = read_index(tree, tmp_path)
    write_files(tree.root, {"art/cat/0.png": png(99)})
    with pytest.raises(DataError, match=r"art/cat/0\.png as it was when the folder was indexed; found it changed"):
        load_cached(tree, index=index, cache=tmp_path)


DAMAGES = {
    "manifest missing": lambda store: (store / "manifest.json").unlink(),
    "empty manifest": lambda store: (store / "manifest.json").write_bytes(b""),
    "incomplete manifest": lambda store: (store / "manifest.json").write_text(json.dumps({"version": 1, "shape": [8]})),
    "list as manifest": lambda store: (store / "manifest.json").write_text("[]"),
    "pixels truncated": lambda store: os.truncate(store / "pixels", 700),
    "pixels too long": lambda store: os.truncate(store / "pixels", 10**6),
    "pixels missing": lambda store: (store / "pixels").unlink(),
    "pixels empty": lambda store: os.truncate(store / "pixels", 0),
    "journal truncated": lambda store: os.truncate(store / "journal", 30),
    "journal missing": lambda store: (store / "journal").unlink(),
    "only pixels": lambda store: [(store / name).unlink() for name in ("journal", "manifest.json")],
    "only journal": lambda store: [(store / name).unlink() for name in ("pixels", "manifest.json")],
    "truncated line": lambda store: [(store / "manifest.json").unlink(), os.truncate(store / "journal", 150)],
    "invalid lines": lambda store: [(store / "manifest.json").unlink(), (store / "journal").write_bytes(b"[1]\nx\n")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_rebuilt(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(cache, "CHUNK", 3)
    root = write_files(write_small_dataset(tmp_path / "data"), {"art/cat/bad.png": b""})
    first = load(root, tmp_path, "skip")
    expected = CachedImages(first.images.clone(), first.sizes, first.kept, first.bad)
    DAMAGES[damage](find_store(tmp_path))
    assert_same(load(root, tmp_path, "skip"), expected)
    assert (find_store(tmp_path) / "pixels").stat().st_size == expected.images.numel()


def count_items(totals: list[tuple[int, int]]) -> Callable[[Iterable[object], int], Iterator[object]]:
    """Return a progress function that appends (items, total) of every pass to a list."""

    def progress(items: Iterable[object], total: int, **_: object) -> Iterator[object]:
        passed = list(items)
        totals.append((len(passed), total))
        yield from passed

    return progress


def build(root: Path, cache_root: Path, fault: str) -> None:
    os.environ["POGM_FAULT"] = fault
    cache.CHUNK = 3
    load(root, cache_root)


def build_in_processes(*jobs: tuple[Path, Path, str]) -> list[int | None]:
    """Build in one process per job, at the same time; return the exit codes."""
    processes = [_context.Process(target=build, args=job) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


@pytest.mark.parametrize(("fault", "left"), [("kill@pixels:3", 6), ("kill@journal:3", 6), ("kill@replace:2", 0)])
def test_killed_build_continues_after_last_complete_chunk(tmp_path, decoded, fault, left):
    root = write_small_dataset(
        tmp_path / "data", each=3
    )  # 12 files, 4 chunks; the index is the first whole file replaced
    assert build_in_processes((root, tmp_path, fault)) == [-signal.SIGKILL]
    assert not (find_store(tmp_path) / "manifest.json").exists()
    totals = []
    tree = read_tree(root)
    found = load_cached(tree, index=read_index(tree, tmp_path), cache=tmp_path, progress=count_items(totals))
    assert totals == [(left, left)], "files of the first build are not part of the progress"
    assert sorted(decoded) == [file.path for file in read_tree(root).files[12 - left :]]
    assert_same(found, load(root, tmp_path / "whole"))


def test_two_processes_build_same_cache(tmp_path):
    root = write_small_dataset(tmp_path / "data", each=20)
    assert build_in_processes((root, tmp_path, ""), (root, tmp_path, "")) == [0, 0]
    assert_same(load(root, tmp_path), load(root, tmp_path / "whole"))


def test_second_builder_waits_and_decodes_nothing(tmp_path, decoded, monkeypatch):
    monkeypatch.setattr(store, "POLL_SECONDS", 0.01)
    root = write_small_dataset(tmp_path / "data")
    started, resume = threading.Event(), threading.Event()
    found = []

    def wait_in_progress(items, total, **_):
        for item in items:
            started.set()
            resume.wait(30)
            yield item

    tree, index = read_tree(root), read_index(read_tree(root), tmp_path)
    first = threading.Thread(
        target=lambda: found.append(load_cached(tree, index=index, cache=tmp_path, progress=wait_in_progress))
    )
    first.start()
    started.wait(30)
    second = threading.Thread(target=lambda: found.append(load_cached(tree, index=index, cache=tmp_path)))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    resume.set()
    first.join(30)
    second.join(30)
    assert_same(*found)
    assert len(decoded) == 8


@pytest.mark.parametrize("fault", ["full@pixels:2", "full@journal:2", "full@write:2"])
def test_full_disk_error_names_path_and_bytes_and_partial_store_is_not_used(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(cache, "CHUNK", 3)
    root = write_small_dataset(tmp_path / "data")
    fault_injection._passed.clear()
    monkeypatch.setenv("POGM_FAULT", fault)
    with pytest.raises(DataError, match=rf"write \d+ bytes to {tmp_path}/images/.*; found: No space left on device"):
        load(root, tmp_path)
    assert store.open_store(find_store(tmp_path)) is None
    monkeypatch.delenv("POGM_FAULT")
    assert_same(load(root, tmp_path), load(root, tmp_path / "whole"))


def test_too_small_disk_is_refused_before_decoding(tmp_path, monkeypatch, decoded):
    root = write_small_dataset(tmp_path / "data")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(DataError, match=rf"write {8 * 3 * 6 * 8} bytes to .*pixels; found: 100 bytes free.*POGM_CACHE"):
        load(root, tmp_path)
    assert decoded == []


def test_progress_counts_files_of_index_and_decoding(tmp_path):
    totals = []
    load_cached(read_tree(write_small_dataset(tmp_path / "data")), cache=tmp_path, progress=count_items(totals))
    assert totals == [(8, 8), (8, 8)]


def test_default_cache_is_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("POGM_CACHE", str(tmp_path / "elsewhere"))
    load_cached(read_tree(write_small_dataset(tmp_path / "data")))
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"images", "indexes"}
