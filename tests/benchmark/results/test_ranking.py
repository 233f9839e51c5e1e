"""Section 11 of the protocol: what a rank says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pogm.benchmark.results.ranking import Ranking, competition_ranks, rankings
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.results.tables import averages_table


def test_ranks_of_section_16():
    assert competition_ranks((3, 3, 1)) == [1, 1, 3]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_the_best_rank_is_one_and_every_rank_counts_those_ahead(values):
    ranks = competition_ranks(values)
    assert min(ranks) == 1
    assert all(rank == 1 + sum(other < rank for other in ranks) for rank in ranks)


def test_ranks_are_summarised_by_two_means_and_the_median():
    ranking = Ranking("POGM", (1, 2, 4))  # 1·2·4 = 2³
    assert (ranking.arithmetic_mean, ranking.median) == (pytest.approx(7 / 3), 2)
    assert ranking.geometric_mean == pytest.approx(2)


def test_ranks_go_by_the_printed_accuracy_and_leave_out_rows_with_gaps(write):
    write("ERM", {0: [0.6004], 1: [0.6]})
    write("Fish", {0: [0.6], 1: [0.6]})
    write("Gap", {0: [None]})
    runs = write("POGM", {0: [0.5], 1: [0.5]})
    ranked = rankings(averages_table(runs, TRAINING_DOMAIN))
    assert [(r.label, r.ranks) for r in ranked] == [("ERM", (1,)), ("Fish", (1,)), ("POGM", (3,))]
