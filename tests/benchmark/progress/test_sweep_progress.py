"""The progress of a sweep: a table on a terminal, lines elsewhere."""

import io

import pytest
from rich.console import Console
from run_folders import record
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.executors.outcomes import Outcome
from pogm.benchmark.progress import sweep_progress
from pogm.benchmark.progress.sweep_progress import SweepState, _LiveTable, track_steps, track_sweep
from pogm.benchmark.results.record_file import append_record
from pogm.benchmark.runs.directory import make_folder, write_trial

KINDS = [(algorithm, seed) for algorithm in (ERM(), POGM()) for seed in range(2)]
TRIALS = [trial(algorithm, seed=seed, steps=21, test_domains=(0,)) for algorithm, seed in KINDS]


def finish(folder, one, value=0.5, done=True):
    make_folder(folder / one.id)
    write_trial(folder / one.id, one, {})
    append_record(folder / one.id / "records.jsonl", record(20, [value] * 6, [value] * 6))
    if done:
        (folder / one.id / "done").write_text("done")


def shown(state, width=60, height=24):
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(_LiveTable(state, console).render())
    return out.getvalue().splitlines()


def test_every_algorithm_has_a_row_with_its_states_and_mean_accuracy(tmp_path):
    finish(tmp_path, TRIALS[0], 0.5)
    finish(tmp_path, TRIALS[1], 0.7)
    state = SweepState(TRIALS, tmp_path, 0.0)
    head, erm, pogm, last = (line.split() for line in shown(state))
    assert head == ["dataset", "algorithm", "done", "run", "fail", "wait", "acc", "%"]
    assert erm == ["RotatedDigits", "ERM", "2", "0", "0", "0", "60.0"]
    assert pogm == ["RotatedDigits", "POGM", "0", "0", "0", "2"]
    assert last[:2] == ["2/4", "runs,"]
    assert last[-1] == "-:--:--"


@pytest.mark.parametrize("width", [200, 60, 30, 10])
def test_the_table_fits_into_the_terminal(tmp_path, width):
    lines = shown(SweepState(TRIALS, tmp_path, 0.0), width)
    assert max(map(len, lines)) <= width


def test_rows_that_do_not_fit_are_counted(tmp_path):
    state = SweepState(TRIALS, tmp_path, 0.0)
    kinds = {(f"data {i}", "ERM"): row for i in range(40) for row in state.rows().values()}
    state.rows = lambda: kinds
    lines = shown(state, height=24)
    assert len(lines) < 24
    assert lines[-1].endswith("21 more rows")


def test_outcomes_pass_through_with_lines_elsewhere_and_a_table_on_a_terminal(tmp_path, capsys, monkeypatch):
    def outcomes():
        for one in TRIALS:
            finish(tmp_path, one)
            yield Outcome(one)

    assert [outcome.trial for outcome in track_sweep(outcomes(), TRIALS, tmp_path)] == TRIALS
    assert capsys.readouterr().err == "runs: 4/4, 0 s, 0 s left\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    known = [Outcome(one, ran=False) for one in TRIALS]
    assert list(track_sweep(known, TRIALS, tmp_path)) == known
    assert "4/4 runs" in capsys.readouterr().err
    assert list(track_sweep([], [], tmp_path)) == []


def test_minibatches_of_long_runs_are_counted_from_their_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_progress, "POLL_SECONDS", 0.01)
    trials = [trial(ERM(), seed=seed, steps=21) for seed in range(2)]
    folder = tmp_path / trials[0].id
    folder.mkdir()
    (folder / "records.jsonl").write_text('{"step": 0}\n{"step": 10}\n')
    assert SweepState(trials, tmp_path, 0.0).steps == 11

    def outcomes():
        (folder / "records.jsonl").write_text('{"step": 20}\n{"step": 2')  # a line that is being written
        yield Outcome(trials[0])
        (folder / "records.jsonl").write_text('{"step": 20}\n')
        (tmp_path / trials[1].id).mkdir()
        (tmp_path / trials[1].id / "records.jsonl").write_text('{"step": 20}\n')
        yield Outcome(trials[1])

    assert len(list(track_steps(outcomes(), trials, tmp_path))) == 2
    assert "minibatches: 42/42" in capsys.readouterr().err
