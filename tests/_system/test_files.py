"""Atomic files, locks and strict JSON."""

import json
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pogm._system import fault_injection
from pogm._system.errors import DataError, UsageError
from pogm._system.files import canonical_json, digest, is_empty, lock_folder, read_json, remove_temporary, write_atomic

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.fixture
def full_disk(monkeypatch):
    """Make the next write fail as if the disk were full."""
    monkeypatch.setattr(fault_injection, "_passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:1")


def test_write_replaces_the_file_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.usefixtures("full_disk")
def test_full_disk_keeps_the_old_file_and_reports_path_and_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(DataError, match=rf"4321 bytes to {path}; found: No space left"):
        write_atomic(path, b"x" * 4321)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"found: (Not a directory|File exists)"):
        write_atomic(tmp_path / "file" / "below", b"")


def test_remove_temporary_deletes_only_temporary_files(tmp_path):
    for name in ("trial.json", "trial.json.part", "lock"):
        (tmp_path / name).touch()
    remove_temporary(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "trial.json"]


def test_folder_with_a_lock_and_a_temporary_file_counts_as_empty(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "trial.json.part").touch()
    assert is_empty(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert not is_empty(tmp_path)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(dict(reversed(value.items()))) == text


def test_digest_is_sha_256():
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@settings(deadline=None)
@given(json_values)
def test_json_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value.json"
    path.write_text(canonical_json(value))
    assert read_json(path) == value


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"seed": 1,\n"steps": 2,\n"seed": 3}', r"'seed' twice \(lines 1, 3\)"),
        (b'{"trial": {"seed": 1, "seed": 1}}', "'seed' twice"),
        (b'\xef\xbb\xbf{"seed": 1}', "line 1: Unexpected UTF-8 BOM"),
        (b'{"seed": 1,\n"steps": }', "line 2: Expecting value"),
        (b'{"kappa": NaN}', "NaN"),
        (b'{"kappa": -Infinity}', "-Infinity"),
        (b'{"seed": \xff}', "invalid start byte at byte 9"),
        (b"", "line 1"),
        (b"[" * 100_000, "recursion"),
        (b"1" * 5000, "digits"),
        (b" " * 2**20 + b"1", "at most 1048576 bytes"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_invalid_json_is_refused_with_path_and_position(tmp_path, content, found):
    path = tmp_path / "trial.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=found) as refused:
        read_json(path)
    assert str(path) in str(refused.value)


def test_locked_folder_is_refused_with_process_and_host_of_its_owner(tmp_path):
    owner = rf"in use by process {os.getpid()} on {socket.gethostname()}\. "
    with lock_folder(tmp_path), pytest.raises(UsageError, match=owner), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def _lock_and_die(folder: Path) -> None:
    with lock_folder(folder):
        os.kill(os.getpid(), signal.SIGKILL)


def test_lock_of_a_dead_process_is_released(tmp_path):
    process = processes.CONTEXT.Process(target=_lock_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert str(process.pid) in (tmp_path / "lock").read_text()
    with lock_folder(tmp_path):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
