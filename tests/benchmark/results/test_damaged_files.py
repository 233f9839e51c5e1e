"""One damaged file of one run: it is named, and reports of the other runs are as without it."""

import json
import math
import os
import shutil
import warnings

import pytest
from run_folders import DOMAINS, metrics_of, record, write_run
from support import trial

from pogm import ERM
from pogm.benchmark.domainbed import export_domainbed
from pogm.benchmark.executors.outcomes import Outcome
from pogm.benchmark.executors.waiting_trials import run_waiting_trials
from pogm.benchmark.results.accuracy_tables import dataset_table
from pogm.benchmark.results.model_metrics import confusions, selected_metrics_table
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_failure, read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.statistics import mean_of
from pogm.benchmark.runs.runner import RunOptions
from pogm.report.runs import figures_of
from pogm.report.watch import Watcher

JUNK = ["x", 10**400, 10**24, 1e308, None, [], {}, True, ["x"], [[1]], {"a": 1}, "absent"]


@pytest.fixture
def runs(tmp_path):
    """A folder with two runs of each of two algorithms, and a job of DomainBed; the folder of the first run."""
    for label in ("ERM", "POGM"):
        for seed in (0, 1):
            lines = [record(step, [0.5] * 3, [0.5] * 3, metrics={"loss": 1.0, "cosine": [0.5, 0.4]}) for step in (0, 9)]
            metrics = metrics_of(DOMAINS[0], [(0, 0), (1, 0), (1, 1)])
            write_run(tmp_path / "runs", lines, label=label, trial_seed=seed, metrics=metrics)
    with pytest.warns(RecordWarning, match="no table of Toy"):
        export_domainbed(read_runs(tmp_path / "runs")[:1], tmp_path / "runs" / "jobs")
    return tmp_path / "runs"


def report(folder):
    """Compute what a report and a board show; return the messages about files, and the number of runs."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = read_runs(folder)
        for dataset in {run.dataset for run in found}:
            dataset_table(found, dataset, TRAINING_DOMAIN).text()
            selected_metrics_table(found, dataset)
            confusions(found, dataset)
            figures_of(found, dataset)
        Watcher(folder).read()
    return [str(warning.message) for warning in said], len(found)


def changed(value, path, junk):
    """Return a JSON value with one of its parts replaced or removed."""
    value = json.loads(json.dumps(value))
    inner = value
    for name in path[:-1]:
        inner = inner[name]
    if junk == "absent":
        del inner[path[-1]]
    else:
        inner[path[-1]] = junk
    return value


FIELDS = {
    "records.jsonl": ["step", "metrics", "accuracy", "status", "seconds_per_step", "metrics.loss", "metrics.cosine"],
    "trial.json": ["id", "label", "domains", "trial", "trial.dataset", "trial.test_domains", "trial.trial_seed"],
    "metrics.json": ["selection", "held_out", "domains", "domains.A", "domains.A.in", "domains.A.in.confusion"],
    "results.jsonl": ["args", "step", "env0_in_acc", "env1_out_acc", "args.test_envs", "args.dataset", "args.seed"],
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_an_invalid_value_does_not_break_the_report(runs, name, field):
    _, count = report(runs)
    path = sorted(runs.rglob(name))[0]
    before = path.read_bytes()
    *others, last = before.splitlines()
    for junk in JUNK:
        path.write_bytes(b"\n".join([*others, json.dumps(changed(json.loads(last), field.split("."), junk)).encode()]))
        _, left = report(runs)
        assert left >= count - 1


@pytest.mark.parametrize("name", ["trial.json", "records.jsonl", "done", "failed.json", "metrics.json"])
def test_a_fifo_in_place_of_a_file_is_not_read(runs, name):
    path = sorted(runs.glob("*/trial.json"))[0].with_name(name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    said, count = report(runs)
    expected = 5 if name in ("failed.json", "metrics.json") else 4  # without them, a run still has results
    assert count == expected
    assert any(str(path) in text for text in said) or name == "failed.json"


def test_a_fifo_in_place_of_a_checkpoint_is_not_read(runs):
    folder = sorted(runs.glob("*/trial.json"))[0].parent
    (folder / "done").unlink()
    (folder / "checkpoints").mkdir()
    os.mkfifo(folder / "checkpoints" / "00000001-00000001.json")
    assert report(runs)[1] == 5


@pytest.mark.parametrize("content", [b"{}", b"{", b"", b"[1]", b'{"error": 3}', b"\xff", None])
def test_an_unreadable_failure_does_not_stop_a_sweep(tmp_path, content):
    failed, waiting = trial(ERM()), trial(ERM(), seed=1)
    path = tmp_path / failed.id / "failed.json"
    path.parent.mkdir()
    os.mkfifo(path) if content is None else path.write_bytes(content)
    outcomes = list(run_waiting_trials([failed, waiting], tmp_path, RunOptions(), lambda todo, *_: map(Outcome, todo)))
    assert [outcome.trial for outcome in outcomes] == [failed, waiting]
    assert outcomes[0].error == read_failure(path.parent) == f"{path} is there but cannot be read"


def test_an_altered_confusion_matrix_of_one_run_is_left_out(runs):
    path = sorted(runs.glob("*/metrics.json"))[0]
    content = json.loads(path.read_text())
    for counts in ([[1, 2]], [[1, 2], [3]], [[1, "x"], [0, 0]], [[1, 2.5], [0, 0]], [[1, 10**24], [0, 0]], []):
        content["domains"][DOMAINS[0]]["in"]["confusion"]["counts"] = counts
        path.write_text(json.dumps(content))
        with pytest.warns(RecordWarning, match=f"{path}: metrics left out"):
            assert len(confusions(read_runs(runs), "Toy")) == 2


def test_a_copy_of_a_run_with_damaged_records_does_not_hide_the_original(runs, tmp_path):
    folder = sorted(runs.glob("*/trial.json"))[0].parent
    copy = shutil.copytree(folder, tmp_path / "runs" / "copy")
    (copy / "records.jsonl").write_text('{"step": 0, "metrics": "x"}\n')
    with pytest.warns(RecordWarning, match=f"{copy}.*skipped 1 unreadable line"):
        assert len(read_runs(runs)) == 5


def test_measurements_that_give_infinity_are_left_out_of_means():
    assert mean_of([1.0, math.inf, 3.0, math.nan]) == mean_of([1.0, 3.0])
