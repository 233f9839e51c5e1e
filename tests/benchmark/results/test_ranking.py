"""Ranks over datasets (section 11 of the protocol)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pogm.benchmark.results.accuracy_tables import averages_table
from pogm.benchmark.results.ranking import SUMMARIES, Ranking, competition_ranks, rankings
from pogm.benchmark.results.selection import TRAINING_DOMAIN


def test_ranks_of_the_example_in_section_16():
    assert competition_ranks((3, 3, 1)) == [1, 1, 3]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_best_rank_is_one_and_a_rank_counts_the_better_values(values):
    ranks = competition_ranks(values)
    assert min(ranks) == 1
    assert all(rank == 1 + sum(other < rank for other in ranks) for rank in ranks)


def test_ranks_are_summarised_by_two_means_and_the_median():
    summaries = Ranking("POGM", (1, 2, 4)).summaries()  # 1·2·4 = 2³
    assert list(summaries) == list(SUMMARIES)
    assert (summaries["arithmetic mean"], summaries["median"]) == (pytest.approx(7 / 3), 2)
    assert summaries["geometric mean"] == pytest.approx(2)


def test_ranks_compare_printed_accuracies_and_skip_incomplete_rows(write):
    write("ERM", {0: [0.6004], 1: [0.6]})
    write("Fish", {0: [0.6], 1: [0.6]})
    write("Gap", {0: [None]})
    runs = write("POGM", {0: [0.5], 1: [0.5]})
    ranked = rankings(averages_table(runs, TRAINING_DOMAIN))
    assert [(r.label, r.ranks) for r in ranked] == [("ERM", (1,)), ("Fish", (1,)), ("POGM", (3,))]
