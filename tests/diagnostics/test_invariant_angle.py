"""The invariant gradient angle."""

import math

import pytest
import torch
from watching import flat, watched

from pogm import ERM, Fish
from pogm.diagnostics import Probe


def by_hand(states, number, lag):
    step = flat(states[number].params, states[number - 1].params)
    return torch.cosine_similarity(step, flat(states[number].params, states[number - lag].params), dim=0).item()


@pytest.mark.parametrize("every", [1, 2, 4])
def test_it_is_the_angle_of_the_last_step_with_the_last_few_together(every):
    measured, states = watched(Fish(), Probe(every, lag=4), rounds=12)
    assert measured["round"] == list(range(every, 13, every))
    for number, value in zip(measured["round"], measured["invariant"], strict=True):
        if number < 4:
            assert math.isnan(value), "there are no weights of so long ago"
        else:
            assert value == pytest.approx(by_hand(states, number, 4))


def test_with_a_lag_of_one_round_it_is_one():
    measured, _ = watched(ERM(), Probe(every=1, lag=1), rounds=3)
    assert measured["invariant"] == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_the_authors_lag_runs_from_one_round_to_the_whole_and_begins_again(every):
    measured, states = watched(Fish(), Probe(every, lag=3, cyclic=True), rounds=10)
    for number, value in zip(measured["round"], measured["invariant"], strict=True):
        assert value == pytest.approx(by_hand(states, number, (number - 1) % 3 + 1))
    assert every > 1 or measured["invariant"][3] == pytest.approx(1)
