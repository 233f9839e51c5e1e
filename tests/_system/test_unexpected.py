"""Errors that nobody expected: exit code 70, one paragraph, and the traceback in a file."""

import re
import tempfile

import pytest
from processes import Deadly

from pogm._system.unexpected import report_unexpected
from pogm.algorithms.erm import ERM
from pogm.benchmark.executors.local import Outcome
from pogm.benchmark.executors.worker import run_job
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import RunOptions
from pogm.cli import main
from pogm.cli.results import print_failures
from pogm.testing import make_trial


class Broken(Deadly):
    """Modifier with a bug."""

    def network(self, network):
        return {}["\x1b[31mno\nsuch key"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_unexpected_error_of_a_command_names_the_command_and_the_file_with_the_traceback(folder, monkeypatch, capsys):
    monkeypatch.setattr("pogm.cli.status.Status.run", lambda self: {}["sweep"])
    assert main(["status", str(folder)]) == 70
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"Expected to finish pogm status {folder}; found an unexpected error" in said
    assert re.search(r" in cli/__init__\.py, line \d+: KeyError: 'sweep'\. ", said)
    (saved,) = folder.glob("pogm-error-*.txt")
    assert said.endswith(f"The traceback is in {saved}\n")
    assert "Traceback (most recent call last)" in saved.read_text()
    assert saved.stat().st_mode & 0o077 == 0, "a traceback may contain paths and values"


def test_traceback_that_cannot_be_saved_is_printed_on_one_line(folder, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "absent"))
    report_unexpected(ValueError("reason"), "a test")
    said = capsys.readouterr().err
    assert "cannot be saved (No such file or directory): ValueError: reason" in said
    assert said.count("\n") == 1


def test_bug_in_a_run_of_a_sweep_is_one_line_and_its_traceback_is_stored_with_the_run(tmp_path, capsys):
    trial = make_trial(ERM(), modifiers=(Broken(),))
    (error,) = run_job([trial], tmp_path, RunOptions())
    assert print_failures([Outcome(trial, error)], tmp_path)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert r"unexpected error: KeyError: '\x1b[31mno\nsuch key'. The traceback is in " in said
    assert said.endswith(f"{tmp_path / trial.id / 'failed.json'}\n")
    (run,) = read_runs(tmp_path)
    assert run.failure.startswith("Traceback")
