"""Where caches lie."""

import threading
from pathlib import Path

import pytest

from pogm._system.errors import DataError, UsageError
from pogm.data.images import cache_directory
from pogm.data.images.cache_directory import alone_in, cache_folder, make_folder


def test_the_environment_names_the_cache_and_home_has_it_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("POGM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("POGM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path, ".cache", "pogm")


def test_a_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"Expected to make the folder .*file/x; found: Not a directory. .*POGM_CACHE"):
        make_folder(tmp_path / "file" / "x")


def test_owners_of_a_folder_come_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_directory, "PAUSE", 0.001)
    inside, most = [], []

    def own() -> None:
        with alone_in(tmp_path / "a" / "b"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=own) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1] * 8


def test_an_owner_s_own_error_is_not_waited_for(tmp_path):
    with pytest.raises(UsageError, match="mine"), alone_in(tmp_path):
        raise UsageError("mine")


def test_a_folder_that_cannot_be_owned_is_explained(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataError, match=r"Expected to write to the folder .*POGM_CACHE"), alone_in(tmp_path):
        pytest.fail("owned")
