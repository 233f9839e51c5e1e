"""Atomic files, locks and strict JSON."""

import json
import os
import signal
import socket
import stat
from collections import Counter
from pathlib import Path

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pogm._system import fault_injection
from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import (
    canonical_json,
    digest,
    is_empty,
    is_locked,
    lock_folder,
    read_json,
    remove_temporary,
    write_atomic,
)
from pogm.benchmark.results.record_file import append_record
from pogm.benchmark.runs.directory import make_folder

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**23), 10**23)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
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


@pytest.fixture
def disk_calls(monkeypatch):
    """Record every ``fsync`` with the inode and size at that moment, and every ``replace``, and make the real call."""
    calls, fsync, replace = [], os.fsync, os.replace

    def record_fsync(descriptor):
        found = os.fstat(descriptor)
        calls.append(("folder", found.st_ino) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_ino))
        fsync(descriptor)

    def record_replace(source, target):
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return calls


def test_write_syncs_all_bytes_of_the_file_before_it_is_replaced_and_the_folder_after(tmp_path, disk_calls):
    path = tmp_path / "file"
    write_atomic(path, b"short")
    assert disk_calls == [(5, path.stat().st_ino), "replace", ("folder", tmp_path.stat().st_ino)]


def test_appended_record_is_synced(tmp_path, disk_calls):
    path = tmp_path / "records.jsonl"
    append_record(path, {"step": 0})
    append_record(path, {"step": 1})
    size, number = path.stat().st_size, path.stat().st_ino
    assert disk_calls == [(size // 2, number), (size, number)]


def make_link(path: Path, target: Path, kind: str) -> None:
    (os.symlink if kind == "symbolic" else os.link)(target, path)


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_write_deletes_a_link_in_place_of_the_temporary_file_and_spares_its_target(tmp_path, kind):
    precious, path = tmp_path / "precious", tmp_path / "run" / "report.html"
    precious.write_bytes(b"precious")
    path.parent.mkdir()
    make_link(path.with_name("report.html.part"), precious, kind)
    make_link(path, precious, kind)
    write_atomic(path, b"new")
    assert (path.read_bytes(), precious.read_bytes()) == (b"new", b"precious")
    assert not path.is_symlink()
    assert list(path.parent.iterdir()) == [path]


def test_write_replaces_the_temporary_file_of_a_killed_process(tmp_path):
    (tmp_path / "file.part").write_bytes(b"a longer part of an earlier file")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_lock_and_records_that_are_links_are_refused_and_their_targets_unchanged(tmp_path, kind):
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_bytes(b"precious")
    folder.mkdir()
    for name in ("lock", "records.jsonl"):
        make_link(folder / name, precious, kind)
    with pytest.raises(IntegrityError, match=r"regular file at .*lock; found a .* link"), lock_folder(folder):
        pass
    with pytest.raises(IntegrityError, match="lock"):
        make_folder(folder)
    with pytest.raises(IntegrityError, match=r"records\.jsonl"):
        append_record(folder / "records.jsonl", {"step": 0})
    assert not is_locked(folder)
    assert precious.read_bytes() == b"precious"


def test_lock_that_is_a_link_to_nothing_creates_nothing(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "absent")
    with pytest.raises(IntegrityError):
        make_folder(tmp_path)
    assert not (tmp_path / "absent").exists()


def test_lock_that_is_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "lock")
    assert not is_locked(tmp_path)
    with pytest.raises(IntegrityError, match="found no regular file"), lock_folder(tmp_path):
        pass


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
