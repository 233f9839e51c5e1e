"""A plan comes back as it was written."""

import pytest

from pogm._system.errors import UsageError
from pogm.benchmark import demo
from pogm.benchmark.plan.plan_file import PLAN, load_plan, save_plan


def test_a_plan_comes_back_as_it_was_written_and_a_newer_one_takes_its_place(tmp_path):
    trials = demo.plan(seeds=1)
    save_plan(trials, tmp_path / "runs")
    assert load_plan(tmp_path / "runs") == trials
    save_plan(trials[:3], tmp_path / "runs")
    assert [trial.id for trial in load_plan(tmp_path / "runs")] == [trial.id for trial in trials[:3]]


@pytest.mark.parametrize("content", ["{}", '[{"steps": 3}]', "[", '"runs"'])
def test_what_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / PLAN).write_text(content)
    with pytest.raises(UsageError, match="Expected"):
        load_plan(tmp_path)
