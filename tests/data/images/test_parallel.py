"""Work on many files at once."""

import threading

import pytest

from pogm.data.images import parallel
from pogm.data.images.parallel import map_in_order, no_progress


def test_results_come_in_order_and_once():
    assert list(map_in_order(lambda number: number**2, range(1000))) == [number**2 for number in range(1000)]
    assert list(map_in_order(str, [])) == []


def test_an_error_reaches_the_caller_at_its_place():
    results = map_in_order(lambda number: 1 // (3 - number), range(10))
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_only_so_much_is_computed_ahead(monkeypatch):
    monkeypatch.setattr(parallel, "AHEAD", 5)
    begun = []
    results = map_in_order(begun.append, range(100))
    next(results)
    assert len(begun) <= 6
    results.close()
    assert len(begun) <= 6
    assert threading.active_count() < 50


def test_the_unseen_progress_passes_everything_on():
    assert list(no_progress([1, 2], 2)) == [1, 2]
