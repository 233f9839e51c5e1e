"""Like trials as one batch, each with a folder of its own."""

import dataclasses
import signal
from itertools import chain

import pytest
from support import needs_gpu, trial

from pogm import ERM, POGM, Fish
from pogm._system.errors import StoppedError
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.batch_runner import groups_of, run_together
from pogm.benchmark.runs.local import run_all
from pogm.benchmark.runs.runner import Settings, run
from pogm.diagnostics import Probe
from pogm.engine.session import Engine

PROBE = Probe(every=4, lag=4, target=True)
FOUR = [trial(POGM(), precision="fp64", seed=s, test_domains=(d,), probe=PROBE) for s in (0, 1) for d in (0, 5)]


def numbers(folder, one):
    """What a run recorded that does not depend on the clock."""
    (found,) = read_runs(folder / one.id)
    assert found.status == "done"
    return [
        [
            *(r["step"], *r["accuracy"]["in"], *r["accuracy"]["out"], r["metrics"]["loss"]),
            *(*r["rounds"]["round"], *chain(*r["rounds"]["angle"]), *r["rounds"]["magnitude"]),
        ]
        for r in found.records
    ]


def measured(folder, one):
    """The same, to be equal up to rounding."""
    return [pytest.approx(row, rel=1e-6) for row in numbers(folder, one)]


def test_trials_that_can_share_a_batch_are_grouped():
    other = [trial(Fish()), trial(POGM(inner_steps=2)), dataclasses.replace(FOUR[0], steps=7)]
    groups = groups_of([FOUR[0], *other, *FOUR[1:]], most=3)
    assert groups == [FOUR[:3], [other[0]], [other[1]], [other[2]], FOUR[3:]]


def test_together_they_write_what_each_would_write_alone(tmp_path):
    assert run_together(FOUR, tmp_path / "batch", Settings()) == [None] * 4
    for one in FOUR:
        run(one, tmp_path / "alone" / one.id)
        assert numbers(tmp_path / "batch", one) == measured(tmp_path / "alone", one)


def test_one_that_diverges_does_not_disturb_the_others(tmp_path):
    wild = dataclasses.replace(FOUR[1].training, lr=1e300)
    trials = [dataclasses.replace(t, algorithm=ERM()) for t in FOUR[:3]]
    trials[1] = dataclasses.replace(trials[1], training=wild)
    errors = run_together(trials, tmp_path, Settings())
    assert errors[0] is errors[2] is None
    assert "Expected finite weights" in errors[1]
    by_id = {r.id: r for r in read_runs(tmp_path)}
    assert [by_id[t.id].status for t in trials] == ["done", "diverged", "done"]
    assert "Expected finite weights" in by_id[trials[1].id].failure


def test_stopped_each_goes_on_alone_from_its_own_checkpoint(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    run_together(FOUR[:2], whole, Settings())
    import pogm.benchmark.runs.batch_runner as module

    real, seen = module.append_record, []

    def append(path, record):
        real(path, record)
        seen.append(record)
        if len(seen) == 3:  # in the second evaluation
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "append_record", append)
    with pytest.raises(StoppedError, match="SIGTERM"):
        run_together(FOUR[:2], tmp_path / "parts", Settings())
    for one in FOUR[:2]:
        run(one, tmp_path / "parts" / one.id)
        assert numbers(tmp_path / "parts", one) == measured(whole, one)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_list_of_trials_is_run_in_batches(tmp_path):
    settings = Settings(engine=Engine("cuda"))
    outcomes = list(run_all([*FOUR, trial(Fish())], tmp_path / "gpu", settings))
    assert [o.error for o in outcomes] == [None] * 5
    for one in FOUR:
        run(one, tmp_path / "cpu" / one.id)
        assert numbers(tmp_path / "gpu", one) == measured(tmp_path / "cpu", one)
