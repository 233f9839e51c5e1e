"""The timeline of a sweep: which runs are one batch."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import timeline

from pogm.benchmark.results.record_digest import DONE, TRIAL


def test_runs_that_start_and_end_together_are_one_batch(tmp_path):
    """Two processes start in the same second; a run of an earlier sweep does not count."""
    spans = [(100.4, 150.0), (100.6, 150.3), (100.5, 200.0), (100.6, 200.2), (160.0, 200.1), (90.0, 95.0)]
    for number, (start, end) in enumerate(spans):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, moment in ((TRIAL, start), (DONE, end)):
            (folder / name).touch()
            os.utime(folder / name, (moment, moment))
    found = timeline.batches(tmp_path, 100.0)
    assert [(round(one["start"]), round(one["end"]), one["runs"]) for one in found] == [
        (0, 50, 2),
        (0, 100, 2),
        (60, 100, 1),
    ]
    assert timeline.lanes(found) == [0, 1, 0]
