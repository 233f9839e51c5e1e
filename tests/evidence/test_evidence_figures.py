"""Figures of the evidence: blocks of the ranks, and panels of the differences to ERM."""

import pytest
from evidence_runs import HEART, PACS, run_of, runs_of

from pogm.evidence.figures import difference_figure, domain_blocks, rank_figure, seed_blocks


def test_ranks_of_a_sweep_have_a_block_for_each_seed_that_all_rows_have():
    runs = runs_of(PACS, {"ERM": 0.0}, 3) + runs_of(PACS, {"Fish": 0.0}, 4)
    assert [sorted(block) for block in seed_blocks(runs)] == [["ERM", "Fish"]] * 3


def test_ranks_over_all_datasets_have_a_block_for_each_domain_and_only_the_methods_of_all_sweeps():
    heart, pacs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.1, "IRM": 0.0}), runs_of(PACS, {"Fish": 0.1, "ERM": 0.0}, 3)
    heart[0] = run_of(HEART, "ERM", 0, 0, 0.6)  # 60, 71, 72, 73, 74 % on the first domain
    blocks = domain_blocks({HEART: heart, PACS: pacs})
    assert [sorted(block) for block in blocks] == [["ERM", "Fish"]] * 8, "four domains of each dataset"
    assert [block["ERM"] for block in blocks] == pytest.approx([0.70, 0.72, 0.72, 0.72, 0.71, 0.71, 0.71, 0.71])
    (panel,) = rank_figure("ranks", "Ranks", blocks, "domains").panels
    assert [(mark.name, mark.points[0].y) for mark in panel.marks] == [("Fish", 1.0), ("ERM", 2.0)]


def test_rows_without_an_interval_have_a_panel_of_their_own():
    runs = runs_of(PACS, {"ERM": 0.0, "Fish": 0.1}, 5) + runs_of(PACS, {"CORAL": 0.1, "Reptile": 0.1}, 4)
    panels = {
        panel.title: [mark.span is None for mark in panel.marks] for panel in difference_figure(PACS, runs).panels
    }
    assert panels == {"Wider intervals": [False], "Fewer than 5 seeds: no interval": [True, True]}
