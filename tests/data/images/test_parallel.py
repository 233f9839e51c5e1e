"""Test the parallel map."""

import threading

import pytest

from pogm.data.images import parallel
from pogm.data.images.parallel import map_in_order, no_progress


def test_results_are_in_order():
    assert list(map_in_order(lambda number: number**2, range(1000))) == [number**2 for number in range(1000)]
    assert list(map_in_order(str, [])) == []


def test_error_is_raised_at_its_item():
    results = map_in_order(lambda number: 1 // (3 - number), range(10))
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_number_of_results_computed_ahead_is_limited(monkeypatch):
    monkeypatch.setattr(parallel, "AHEAD", 5)
    started = []
    results = map_in_order(started.append, range(100))
    next(results)
    assert len(started) <= 6
    results.close()
    assert len(started) <= 6
    assert threading.active_count() < 50


def test_no_progress_returns_all_items():
    assert list(no_progress([1, 2], 2)) == [1, 2]
