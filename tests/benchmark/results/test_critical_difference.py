"""Friedman ranks and Nemenyi's critical difference."""

import math

import pytest

from pogm.benchmark.results.critical_difference import compare_ranks, range_quantile

# Table 5 (a) of Demšar (2006): q for α = 0.05, which is the quantile of the range divided by √2.
DEMSAR = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}


@pytest.mark.parametrize(("count", "value"), DEMSAR.items())
def test_quantiles_are_those_of_demsars_table(count, value):
    assert range_quantile(0.95, count) / math.sqrt(2) == pytest.approx(value, abs=1e-3)


def test_critical_difference_is_that_of_demsars_example():
    """Four classifiers on 14 datasets: the critical difference is 1.25 (Demšar, 2006, section 3.2.4)."""
    blocks = [{"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}] * 14
    assert compare_ranks(blocks).difference == pytest.approx(1.25, abs=0.005)


def test_ranks_are_means_over_blocks_and_ties_share_their_ranks():
    found = compare_ranks([{"a": 3.0, "b": 1.0, "c": 2.0}, {"a": 5.0, "b": 5.0, "c": 4.0}])
    assert found.ranks == {"a": 1.25, "b": 2.25, "c": 2.5}
    assert list(found.ranks) == ["a", "b", "c"]


def test_groups_are_the_largest_sets_of_neighbours_that_do_not_differ():
    blocks = [{"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}] * 14  # ranks 1, 2, 3 and 4; difference 1.25
    assert compare_ranks(blocks).groups() == [("a", "b"), ("b", "c"), ("c", "d")]
    many = compare_ranks(blocks * 20)
    assert many.groups() == [], "with many blocks, all four differ"
    few = compare_ranks(blocks[:2])
    assert few.groups() == [("a", "b", "c", "d")]
