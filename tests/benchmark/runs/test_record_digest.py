"""Altered records are noticed: a run with them is not resumed, and a report leaves it out."""

import json
import random
import shutil
import signal

import pytest
from processes import pogm, records
from support import trial

from pogm import ERM
from pogm._system.errors import IntegrityError, StoppedError
from pogm.benchmark.results.record_digest import RecordDigest, read_verified
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import extend_run
from pogm.benchmark.runs.runner import RunOptions, run

TRIAL = trial(ERM())
EVERY_SAVE = RunOptions(checkpoint_seconds=0)


def stop_at(minibatches):
    """Return a callback that stops a run after this number of minibatches."""
    return lambda count: count == minibatches and signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(TRIAL, folder, EVERY_SAVE)
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped after its second evaluation."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(StoppedError):
        run(TRIAL, folder, EVERY_SAVE, on_round=stop_at(15))
    return folder


@pytest.fixture(params=["finished", "interrupted"])
def copy(request, tmp_path):
    """A run that a test may change."""
    return shutil.copytree(request.getfixturevalue(request.param), tmp_path / "run")


def flips(content, count):
    """Yield copies of the content with one random bit flipped, each in another byte."""
    draw = random.Random(0)
    for place in draw.sample(range(len(content)), min(count, len(content))):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        yield bytes(changed)


def test_every_flipped_bit_of_the_records_is_noticed(copy):
    content = (copy / "records.jsonl").read_bytes()
    for changed in flips(content, 500):
        (copy / "records.jsonl").write_bytes(changed)
        with pytest.raises(IntegrityError, match="found others"):
            read_verified(copy)
    (copy / "records.jsonl").write_bytes(content)
    assert read_verified(copy)[0] == content


def test_a_run_with_altered_records_is_not_resumed_and_not_changed(copy):
    for changed in flips((copy / "records.jsonl").read_bytes(), 4):
        (copy / "records.jsonl").write_bytes(changed)
        with pytest.raises(IntegrityError, match=r"records\.jsonl .*found others"):
            run(TRIAL, copy, EVERY_SAVE)
        assert (copy / "records.jsonl").read_bytes() == changed


def test_the_exit_code_of_a_resume_with_altered_records_is_6(copy):
    (copy / "records.jsonl").write_bytes(next(flips((copy / "records.jsonl").read_bytes(), 1)))
    end = pogm("resume", copy, "--device", "cpu")
    assert (end.code, f"{copy / 'records.jsonl'}" in end.err) == (6, True)


def test_a_report_names_altered_runs_and_leaves_them_out(copy, finished, tmp_path):
    other = shutil.copytree(copy, tmp_path / "other")
    saved = json.loads((other / "trial.json").read_text()) | {"id": "other"}
    (other / "trial.json").write_text(json.dumps(saved))
    for changed in flips((copy / "records.jsonl").read_bytes(), 20):
        (copy / "records.jsonl").write_bytes(changed)
        with pytest.warns(RecordWarning, match=rf"{copy}.*left out.*found others"):
            assert [found.id for found in read_runs(tmp_path)] == ["other"]


def test_lines_that_were_removed_or_added_are_noticed(copy):
    lines = (copy / "records.jsonl").read_bytes().splitlines(keepends=True)
    for changed in (lines[:-1], lines[1:], [], lines[::-1]):
        (copy / "records.jsonl").write_bytes(b"".join(changed))
        with pytest.raises(IntegrityError):
            read_verified(copy)
    (copy / "records.jsonl").unlink()
    with pytest.raises(IntegrityError):
        read_verified(copy)


def test_a_finished_run_with_an_added_record_is_noticed(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    with open(copy / "records.jsonl", "ab") as file:
        file.write(b'{"step": 30}\n')
    with pytest.raises(IntegrityError, match="Something was added"):
        read_verified(copy)


def test_what_follows_the_checkpoint_is_computed_again(interrupted, finished, tmp_path):
    """A killed run can have a record, or a part of one, that its last checkpoint does not know."""
    copy = shutil.copytree(interrupted, tmp_path / "run")
    with open(copy / "records.jsonl", "ab") as file:
        file.write(b'{"step": 20, "accuracy": {}}\n{"step')
    with pytest.warns(RecordWarning, match="skipped 1 unreadable line"):
        run(TRIAL, copy, EVERY_SAVE)
    assert records(copy) == records(finished)
    assert read_verified(copy)[1]


def test_every_flipped_bit_of_done_is_noticed(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    content = (copy / "done").read_bytes()
    for changed in flips(content, len(content)):
        (copy / "done").write_bytes(changed)
        with pytest.warns(RecordWarning, match="left out"):
            assert read_runs(copy) == []


def test_runs_of_earlier_versions_have_no_digest_and_are_read_and_resumed(copy, finished):
    for path in copy.glob("checkpoints/*.json"):
        manifest = json.loads(path.read_text())
        del manifest["records"]
        path.write_text(json.dumps(manifest))
    if (copy / "done").exists():
        (copy / "done").write_bytes(b"done\n")
    assert len(read_runs(copy)) == 1
    run(TRIAL, copy, EVERY_SAVE)
    assert records(copy) == records(finished)


def test_an_extended_run_resumes_although_its_last_evaluation_was_not_a_regular_one(tmp_path):
    run(trial(ERM(), steps=16), tmp_path / "run", EVERY_SAVE)
    extended = extend_run(tmp_path / "run", 31)

    def crash(count):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(extended, tmp_path / "run", EVERY_SAVE, on_round=crash)  # after the records were restored
    run(extended, tmp_path / "run", EVERY_SAVE)
    assert [found["step"] for found in records(tmp_path / "run")] == [0, 10, 15, 20, 30]


def test_the_digest_of_lines_is_that_of_their_content():
    digest = RecordDigest(b"one\n")
    digest.add(b"two\n")
    assert digest.to_json() == RecordDigest(b"one\ntwo\n").to_json()
