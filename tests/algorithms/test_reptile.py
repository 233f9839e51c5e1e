"""Reptile: the mean of the trajectories."""

import pytest
from rounds import one_round, trajectories
from support import assert_close, steps

from pogm import ERM, POGM
from pogm.algorithms.reptile import Reptile
from pogm.core import trees
from pogm.core.optimizers import SGD


class SgdERM(ERM):
    """ERM by plain gradient descent."""

    def optimizer(self, lr, weight_decay):
        return SGD(lr, weight_decay)


@pytest.mark.parametrize("meta_lr", [1.0, 0.25])
def test_one_step_of_sgd_equals_erm_with_alpha_times_the_learning_rate(meta_lr):
    reptile = Reptile(meta_lr=meta_lr, inner_optimizer="sgd")
    assert_close(steps(reptile, 5, lr=0.1).params, steps(SgdERM(), 5, lr=0.1 * meta_lr).params)


def test_meta_lr_one_equals_federated_averaging():
    method = Reptile(meta_lr=1.0, inner_steps=4)
    before, after, _ = one_round(method)
    copies = trees.map_leaves(lambda leaf, h: leaf + h, before.params, trajectories(method))
    assert_close(after.params, trees.mean(copies))


def test_equals_pogm_without_a_ball():
    assert_close(steps(Reptile(inner_steps=2), 4), steps(POGM(kappa=0.0, inner_steps=2, centre="mean", meta_lr=0.5), 4))
