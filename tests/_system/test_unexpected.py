"""Errors that nobody expected: exit code 70, one paragraph, and the traceback in a file."""

import re
import sysconfig
import tempfile

import pytest
from processes import Deadly

from pogm._system.unexpected import PACKAGE, find_position, find_position_in_text, report_unexpected
from pogm.algorithms.erm import ERM
from pogm.benchmark.executors.outcomes import Outcome
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


LINE = Broken.network.__code__.co_firstlineno + 1


def test_position_is_that_of_a_file_that_is_not_installed():
    """A plug-in in the current folder, which pogm called and which called torch."""
    script, torch = ("/home/me/bin/pogm", 8), (f"{sysconfig.get_path('purelib')}/torch/nn.py", 3)
    runner, plugin = (f"{PACKAGE}benchmark/runner.py", 40), ("/home/me/worst_gap.py", 26)
    assert find_position([script, runner, plugin, runner, torch]) == " in /home/me/worst_gap.py, line 26"
    assert find_position([script, runner, torch]) == " in benchmark/runner.py, line 40"
    assert find_position([script]) == ""
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{file}", line {line}, in f\n    call()\n' for file, line in (script, runner, plugin, torch)
    )
    assert find_position_in_text(f"{text}KeyError: 'x'\n") == " in /home/me/worst_gap.py, line 26"


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
    assert re.search(r" in \S+/test_unexpected\.py, line \d+: KeyError: 'sweep'\. ", said)
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
    assert f"unexpected error in {__file__}, line {LINE}: KeyError: " in said
    assert r": KeyError: '\x1b[31mno\nsuch key'. The traceback is in " in said
    assert said.endswith(f"{tmp_path / trial.id / 'failed.json'}\n")
    (run,) = read_runs(tmp_path)
    assert run.failure.startswith("Traceback")
