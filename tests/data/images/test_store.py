"""Test the store of pixels, and the directory and locks of the cache."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from pogm._system.errors import DataError, UsageError
from pogm._system.files import digest
from pogm.data.images import store
from pogm.data.images.store import Chunk, StoreBuilder, cache_directory, lock_directory, open_store

SIZE = 3 * 4 * 5


def make_image(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (3, 4, 5), dtype=np.uint8)


def make_chunk(first: int, count: int) -> Chunk:
    return Chunk(list(range(first, first + count)), [(9, 9)] * count, [], first + count)


def write_chunks(folder: Path) -> StoreBuilder:
    """Write two chunks of two images."""
    builder = StoreBuilder(folder, 4, 5)
    builder.add([make_image(0), make_image(1)], make_chunk(0, 2))
    builder.add([make_image(2), make_image(3)], make_chunk(2, 2))
    return builder


def test_finished_store_has_all_chunks(tmp_path):
    builder = write_chunks(tmp_path)
    assert open_store(tmp_path) is None
    builder.finish()
    images, chunks = open_store(tmp_path)
    assert torch.equal(images, torch.tensor(np.stack([make_image(seed) for seed in range(4)])))
    assert [each.kept for each in chunks] == [[0, 1], [2, 3]]


def test_missing_store_is_none(tmp_path):
    assert open_store(tmp_path) is None
    assert open_store(tmp_path / "missing") is None


def test_new_builder_continues_after_last_complete_chunk(tmp_path):
    write_chunks(tmp_path)
    assert (StoreBuilder(tmp_path, 4, 5).images, StoreBuilder(tmp_path, 4, 5).files) == (4, 4)
    with open(tmp_path / "pixels", "ab") as file:
        file.write(b"half an image")
    with open(tmp_path / "journal", "ab") as file:
        file.write(b"[[4,5],[[9,9")
    builder = StoreBuilder(tmp_path, 4, 5)
    assert (builder.images, builder.files) == (4, 4)
    assert (tmp_path / "pixels").stat().st_size == 4 * SIZE
    builder.add([make_image(4)], make_chunk(4, 1))
    builder.finish()
    assert torch.equal(open_store(tmp_path)[0][4], torch.tensor(make_image(4)))


@pytest.mark.parametrize(
    ("size", "images"), [(0, 0), (2 * SIZE - 1, 0), (2 * SIZE, 2), (4 * SIZE - 1, 2), (4 * SIZE, 4)]
)
def test_journal_line_without_pixels_is_dropped(tmp_path, size, images):
    write_chunks(tmp_path)
    os.truncate(tmp_path / "pixels", size)
    assert StoreBuilder(tmp_path, 4, 5).images == images
    assert (tmp_path / "pixels").stat().st_size == images * SIZE


def test_damaged_finished_store_starts_empty(tmp_path):
    write_chunks(tmp_path).finish()
    os.truncate(tmp_path / "pixels", 3 * SIZE)
    assert open_store(tmp_path) is None
    assert StoreBuilder(tmp_path, 4, 5).images == 0
    assert not (tmp_path / "manifest.json").exists()


def test_mapped_images_survive_rebuild(tmp_path):
    write_chunks(tmp_path).finish()
    images, _ = open_store(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    StoreBuilder(tmp_path, 4, 5).add([make_image(9)], make_chunk(0, 1))
    assert torch.equal(images[3], torch.tensor(make_image(3)))


OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@pytest.mark.skipif(not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == "2", reason="needs Linux's default")
def test_file_larger_than_memory_can_be_mapped(tmp_path):
    shape = [2**40 // (3 * 256 * 256), 3, 256, 256]  # 1 TB as a sparse file
    (tmp_path / "pixels").touch()
    os.truncate(tmp_path / "pixels", int(np.prod(shape)))
    (tmp_path / "journal").write_bytes(b"")
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "shape": shape, "journal": digest(b"")}))
    images, _ = open_store(tmp_path)
    assert list(images.shape) == shape
    assert images[-1].sum() == 0


def test_cache_directory_from_environment_or_home(monkeypatch, tmp_path):
    monkeypatch.setenv("POGM_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("POGM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == Path(tmp_path, ".cache", "pogm")


def test_error_if_directory_cannot_be_created(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"Expected to make the folder .*file/x; found: Not a directory. .*POGM_CACHE"):
        lock_directory(tmp_path / "file" / "x").__enter__()


def test_lock_is_held_by_one_thread_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "POLL_SECONDS", 0.001)
    inside, counts = [], []

    def lock() -> None:
        with lock_directory(tmp_path / "a" / "b"):
            inside.append(1)
            counts.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=lock) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counts == [1] * 8


def test_exception_inside_the_lock_is_raised(tmp_path):
    with pytest.raises(UsageError, match="inside"), lock_directory(tmp_path):
        raise UsageError("inside")


def test_error_if_directory_cannot_be_locked(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataError, match=r"Expected to write to the folder .*POGM_CACHE"), lock_directory(tmp_path):
        pytest.fail("locked")
