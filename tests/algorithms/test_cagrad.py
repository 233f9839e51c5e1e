"""CAGrad; POGM on the same trajectories is equal up to a factor."""

import pytest
import torch
from support import K, assert_close, batches, steps, toy
from torch.func import grad
from torchjd.aggregation import CAGradWeighting

from pogm import POGM, pareto
from pogm.algorithms.cagrad import CAGrad
from pogm.core import trees
from pogm.core.batch import Batch


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_it_is_pogm_divided_by_one_plus_the_radius_squared(inner_steps):
    def around_the_mean(meta_lr):
        return POGM(kappa=0.4, centre="mean", meta_lr=meta_lr, inner_steps=inner_steps)

    cagrad = CAGrad(radius=0.4, inner_steps=inner_steps)
    assert_close(steps(cagrad, 4), steps(around_the_mean(0.5 / (1 + 0.4**2)), 4))
    farther = CAGrad(radius=0.4, inner_steps=inner_steps, meta_lr=0.5 * (1 + 0.4**2))
    assert_close(steps(farther, 4), steps(around_the_mean(0.5), 4))


def test_with_one_step_of_sgd_it_is_the_published_method_on_gradients():
    cagrad = CAGrad(radius=0.4, meta_lr=0.3, inner_optimizer="sgd")
    state, problem = toy(cagrad, lr=0.05)
    (batch,) = batches()

    def risk(params, k):
        return problem.model(params, state).losses(Batch(batch.x[k : k + 1], batch.y[k : k + 1])).mean()

    gradients = trees.stack([grad(risk)(state.params, k) for k in range(K)])
    weights = CAGradWeighting(c=0.4, norm_eps=1e-10)(pareto.gramian(gradients)) / (1 + 0.4**2)
    expected = trees.move(state.params, trees.combine(weights, gradients), -0.3 * 0.05)
    after, _ = cagrad.step(state, [batch], problem)
    assert_close(after.params, expected, 1e-7)


def test_a_radius_may_be_a_tensor():
    state, problem = toy(CAGrad())
    number, tensor = CAGrad(radius=0.3), CAGrad(radius=torch.tensor(0.3, dtype=torch.float64))
    assert_close(number.step(state, batches(), problem)[0], tensor.step(state, batches(), problem)[0])
