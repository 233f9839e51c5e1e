"""Estimates of time and memory, from earlier records and by measuring."""

import json
import time
from dataclasses import replace

import pytest
from support import trial

from pogm import ERM, POGM, Fish
from pogm.benchmark.catalogue import costs
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.runs import estimate
from pogm.benchmark.runs.estimate import PlanEstimate, duration, estimate_from_records, estimate_lines, estimates
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets import dataset_class

ERM_TRIAL = trial(ERM(), steps=101)


def write_run(folder, one, times, device="cpu"):
    """Write the files of a run with these seconds per step."""
    path = folder / one.id
    path.mkdir(parents=True)
    facts = {"id": one.id, "label": one.label, "trial": one.to_json(), "domains": list(one.dataset.domains)}
    facts["provenance"] = {"device": device}
    (path / "trial.json").write_text(json.dumps(facts))
    lines = [{"step": step, "seconds_per_step": value, "memory_gb": 0.0} for step, value in enumerate(times)]
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_without_records_runs_are_counted_and_the_time_is_unknown(tmp_path):
    kinds = estimate_from_records([ERM_TRIAL, trial(ERM(), seed=1), trial(POGM())], [tmp_path / "missing"])
    assert kinds == [
        PlanEstimate("RotatedDigits", "ERM", 2, None, None, ""),
        PlanEstimate("RotatedDigits", "POGM", 1, None, None, ""),
    ]
    assert estimate_lines(kinds, 2)[-1].startswith("3 runs, time unknown. There are no earlier records")


def test_a_plan_of_large_networks_needs_no_data_and_at_most_five_seconds(monkeypatch):
    monkeypatch.setattr(estimate, "Session", lambda *_: pytest.fail("built a session"))
    datasets = tuple(dataset_class(name)() for name in ("PACS", "DomainNet"))
    trials = Sweep(("ERM", "POGM"), datasets, configurations=20, trials=3).plan()
    start = time.monotonic()
    assert sum(kind.runs for kind in estimate_from_records(trials)) == len(trials)
    assert time.monotonic() - start < 5


def test_the_time_of_earlier_runs_is_used_without_the_first_evaluation(tmp_path):
    write_run(tmp_path, ERM_TRIAL, [9.0, 0.2, 0.2, None])
    (kind,) = estimate_from_records([ERM_TRIAL, trial(ERM(), steps=101, seed=1)], [tmp_path])
    assert (kind.runs, kind.source) == (2, "records")
    assert kind.seconds == pytest.approx(2 * 101 * 0.2)
    assert estimate_lines([kind], 2)[-1] == "2 runs, about 20 s on 2 processes."


def test_trials_of_one_batch_share_its_time(tmp_path):
    trials = [replace(ERM_TRIAL, seed=seed) for seed in range(4)]
    for one in trials:
        write_run(tmp_path, one, [9.0, 0.2, 0.3])
    (kind,) = estimate_from_records(trials, [tmp_path])
    assert kind.seconds == pytest.approx(4 * 101 * 0.25 / 4)


def test_records_of_another_algorithm_are_scaled_by_the_measured_costs(tmp_path):
    write_run(tmp_path, ERM_TRIAL, [9.0, 0.2])
    (kind,) = estimate_from_records([trial(Fish(), steps=101)], [tmp_path])
    ratio = float(costs()["Fish"]["CPU, mnist_cnn"].split(" · ")[0])
    assert kind.seconds == pytest.approx(101 * 0.2 * ratio)
    assert kind.source == "records of ERM and costs.json"


def test_records_of_another_device_or_dataset_are_not_used(tmp_path):
    write_run(tmp_path, ERM_TRIAL, [9.0, 0.2], device="NVIDIA H200")
    write_run(tmp_path, trial(ERM(), dataset="ColoredDigits"), [9.0, 0.2])
    assert estimate_from_records([ERM_TRIAL], [tmp_path])[0].seconds is None
    assert estimate_from_records([ERM_TRIAL], [tmp_path], on_gpu=True)[0].seconds is not None


def test_unreadable_runs_are_ignored(tmp_path):
    write_run(tmp_path, ERM_TRIAL, [9.0, 0.2])
    for number, text in enumerate(("", "[]", "{", '{"trial": 3}')):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "trial.json").write_text(text)
    assert estimate_from_records([ERM_TRIAL], [tmp_path])[0].seconds is not None


def test_records_of_a_real_run_are_used(tmp_path):
    run(ERM_TRIAL, tmp_path / ERM_TRIAL.id)
    (kind,) = estimate_from_records([ERM_TRIAL], [tmp_path])
    assert 0 < kind.seconds < 60


def test_partly_unknown_times_are_named():
    kinds = [PlanEstimate("Toy", "ERM", 2, 90.0, 1.0), PlanEstimate("Toy", "POGM", 3, None, None, "")]
    lines = estimate_lines(kinds)
    assert lines[:2] == ["Toy  ERM  2 runs  90 s  1.0 GB each", "Toy  POGM  3 runs  time unknown"]
    assert "5 runs, about 90 s on 1 process, without 3 runs of unknown time." in lines[2]


def test_a_measured_estimate_counts_every_run_and_every_evaluation():
    sweep = Sweep(("ERM", "POGM"), (dataset_class("ColoredDigits")(),), 2, 1, steps=5, evaluate_every=4)
    plan = sweep.plan()
    (erm, pogm) = estimates(plan, RunOptions())
    assert (erm.runs, pogm.runs) == (6, 6)
    assert erm.seconds > 0
    assert erm.memory_gb > 0
    longer = estimates([replace(t, steps=5000) for t in plan if t.label == "ERM"], RunOptions())[0]
    assert longer.seconds > 20 * erm.seconds


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (600, "10.0 min"), (9000, "2.5 h"), (259200, "3.0 days")])
def test_durations_have_a_suitable_unit(seconds, text):
    assert duration(seconds) == text
