"""Fish, Algorithm 1."""

import torch
from support import K, assert_close, batches, steps, toy
from torch import nn

from pogm import ERM, Batch, Fish
from pogm.core import trees
from pogm.core.model import Network
from pogm.core.optimizers import SGD
from pogm.core.random_layers import Dropout


def one(batch, k):
    return Batch(batch.x[k : k + 1], batch.y[k : k + 1])


def test_step_interpolates_towards_the_result_of_the_inner_steps():
    fish = Fish(meta_lr=0.3, permute=False)
    state, problem = toy(fish)
    (batch,) = batches()
    walker, losses = state, []
    for k in range(K):
        walker, metrics = ERM().step(walker, [one(batch, k)], problem)
        losses.append(metrics["loss"])
    after, metrics = fish.step(state, [batch], problem)
    expected = trees.move(state.params, trees.subtract(walker.params, state.params), 0.3)
    assert_close(after.params, expected)
    assert_close(after.optimizer, walker.optimizer)
    torch.testing.assert_close(metrics["loss"], torch.stack(losses).mean())


def test_inner_optimizer_keeps_its_state_between_steps():
    assert steps(Fish(), 3).optimizer["count"] == 3 * K


def test_order_of_domains_is_random_in_every_step():
    """Everything except the order is fixed, so different results mean different orders."""
    fish, fixed = Fish(), Fish(permute=False)
    (batch,) = batches()
    state, problem = toy(fish)
    ends = {
        fish.step(state._replace(step=torch.tensor(step)), [batch], problem)[0].params["head.bias"][0].item()
        for step in range(60)
    }
    assert len(ends) == 6, "every one of the 3! orders"
    assert fixed.step(state, [batch], problem)[0].params["head.bias"][0].item() in ends


def test_every_inner_step_has_its_own_dropout_mask():
    keys = []

    class WithDropout(Fish):
        def build(self, features, width, num_classes, num_domains):
            return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))

        def loss(self, model, batch, state):
            keys.append(model.buffers["features.1.key"].item())
            return super().loss(model, batch, state)

    steps(WithDropout(), 3)
    assert len(keys) == len(set(keys)) == 3 * K


def test_inner_steps_match_theorem_3_1_to_second_order():
    """Shi et al., Theorem 3.1, for two domains: the mean over both orders is η (g_0 + g_1 − η/2 ∇(g_0·g_1)) + O(η³)."""

    class SgdFish(Fish):
        def optimizer(self, lr, weight_decay):
            return SGD(lr, weight_decay)

    (batch,) = batches(domains=2)
    rate = 1e-3
    fish = SgdFish(meta_lr=1.0, permute=False)
    state, problem = toy(fish, lr=rate, domains=2)
    flipped = Batch(batch.x.flip(0), batch.y.flip(0))
    ends = [fish.step(state, [b], problem)[0].params for b in (batch, flipped)]
    walk = trees.map_leaves(lambda a, b, start: (start - (a + b) / 2) / rate, *ends, state.params)

    def risk(params, k):
        return problem.model(params, state).risks(one(batch, k))[0]

    gradient = torch.func.grad(risk)
    first = trees.add(gradient(state.params, 0), gradient(state.params, 1))

    def agreement(params):
        pair = gradient(params, 0), gradient(params, 1)
        return torch.stack([(a * b).sum() for a, b in zip(pair[0].values(), pair[1].values(), strict=True)]).sum()

    second = torch.func.grad(agreement)(state.params)
    predicted = trees.move(first, second, -rate / 2)
    assert_close(walk, predicted, 2e-6)
    correction = trees.subtract(walk, first)
    torch.testing.assert_close(trees.dot(correction, second), -rate / 2 * trees.dot(second, second), rtol=1e-2, atol=0)


def test_buffers_are_interpolated():
    state, problem = toy(Fish(meta_lr=0.5, permute=False), batch_norm=True)
    (batch,) = batches()
    walker = state
    for k in range(K):
        walker, _ = ERM().step(walker, [one(batch, k)], problem)
    after, _ = Fish(meta_lr=0.5, permute=False).step(state, [batch], problem)
    name = next(name for name in problem.live if name.endswith("running_var"))
    torch.testing.assert_close(after.buffers[name], (state.buffers[name] + walker.buffers[name]) / 2)
