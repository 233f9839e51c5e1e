"""Objectives that change in the middle of training."""

import pytest
import torch
from support import toy
from torch.func import vmap

from pogm import ERM
from pogm.algorithms.annealing import with_lr


@pytest.mark.parametrize(("late", "lr", "found"), [(False, 0.3, 0.1), (True, 0.3, 0.3), (True, 0.0, 0.1)])
def test_the_rate_changes_where_it_is_late_and_another_is_given(late, lr, found):
    _, problem = toy(ERM(), lr=0.1, weight_decay=0.01)
    changed = with_lr(problem, torch.tensor(late), lr)
    assert changed.optimizer.lr.item() == found, "to the last bit"
    assert changed.optimizer.weight_decay == 0.01
    assert problem.optimizer.lr == 0.1


def test_trials_of_a_batch_have_each_their_rate():
    _, problem = toy(ERM(), lr=0.1)
    late, rates = torch.tensor([True, True, False]), torch.tensor([0.3, 0.0, 0.3], dtype=torch.float64)
    found = vmap(lambda late, lr: with_lr(problem, late, lr).optimizer.lr)(late, rates)
    assert found.tolist() == [0.3, 0.1, 0.1]
