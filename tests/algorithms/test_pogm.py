"""POGM: claims of the paper."""

import pytest
import torch
from rounds import centre_of, one_round, trajectories
from support import B, K, assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM, POGM, pareto
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.optimizers import SGD, Adam


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_a_round_moves_along_theorem_1(inner_steps, kappa, centre):
    """θ + α (h_0 + κ |h_0| h_π / |h_π|), from trajectories computed naively and the worst mixture of their hull."""
    pogm = POGM(kappa=kappa, inner_steps=inner_steps, meta_lr=0.7, centre=centre)
    before, after, metrics = one_round(pogm)
    rows = trajectories(pogm)
    flat = torch.cat([leaf.flatten(1) for leaf in rows.values()], dim=1)
    centre, mixed = centre_of(pogm, flat), metrics["mixture"] @ flat
    direction = centre + kappa * centre.norm() * mixed / mixed.norm()
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in rows])
    torch.testing.assert_close(moved, 0.7 * direction, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_direction_is_best_for_the_worst_domain_in_the_ball(centre):
    pogm = POGM(kappa=0.5, meta_lr=1.0, centre=centre)
    before, after, metrics = one_round(pogm)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(pogm).values()], dim=1)
    centre = centre_of(pogm, flat)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    torch.testing.assert_close((flat @ moved).min(), metrics["worst"], rtol=1e-9, atol=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        away = flat.T @ torch.randn(K, generator=generator, dtype=torch.float64)  # h_π lies in their span
        other = centre + 0.5 * centre.norm() * away / away.norm()
        assert (flat @ other).min() <= metrics["worst"] + 1e-12


def test_one_domain_without_a_ball_is_erm_with_adam():
    """Spec §1.9: K = 1, κ = 0, α = 1, E = 1, persistent state."""
    pogm = POGM(kappa=0.0, meta_lr=1.0, inner_steps=1)
    assert_close(steps(pogm, 6, domains=1).params, steps(ERM(), 6, domains=1).params)


@pytest.mark.parametrize("inner_optimizer", ["sgd", "adam"])
def test_without_a_ball_the_mean_centre_is_local_sgd_averaging(inner_optimizer):
    """As in FedAvg, every domain trains a copy for E steps, and the copies are averaged."""
    pogm = POGM(kappa=0.0, meta_lr=1.0, inner_steps=4, inner_optimizer=inner_optimizer, centre="mean")
    before, after, _ = one_round(pogm)
    mean = trees.add(before.params, trees.mean(trajectories(pogm)))
    assert_close(after.params, mean)


@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_one_inner_step_of_sgd_equals_cagrad_on_minibatch_gradients(centre):
    """The weights are those of the gradients (Liu et al., 2021), with learning rate α·η; both centres are the mean."""
    pogm = POGM(kappa=0.4, meta_lr=0.3, inner_optimizer="sgd", centre=centre)
    state, problem = toy(pogm, lr=0.05)
    (batch,) = batches()

    def risk(params, x, y):
        return problem.model(params, state).losses(Batch(x[None], y[None])).mean()

    gradients = trees.stack([grad(risk)(state.params, batch.x[k], batch.y[k]) for k in range(K)])
    weights = pareto.invariant_weights(pareto.gramian(gradients), 0.4)
    expected = trees.move(state.params, trees.combine(weights, gradients), -0.3 * 0.05)
    after, _ = pogm.step(state, [batch], problem)
    assert_close(after.params, expected)


def test_identical_domains_give_a_step_of_one_plus_kappa():
    pogm = POGM(kappa=0.5, meta_lr=1.0)
    state, problem = toy(pogm)
    (batch,) = batches(domains=1)
    same = Batch(batch.x.expand(K, *batch.x.shape[1:]), batch.y.expand(K, B))
    after, _ = pogm.step(state, [same], problem)
    alone, problem = toy(ERM(), domains=1)
    erm, _ = ERM().step(alone, [batch], problem)
    step = trees.subtract(erm.params, alone.params)
    assert_close(after.params, trees.move(state.params, step, 1.5))


def test_weights_do_not_depend_on_the_order_of_the_domains():
    pogm = POGM(inner_steps=2)
    state, problem = toy(pogm)
    forwards = batches(2)
    backwards = [Batch(batch.x.flip(0), batch.y.flip(0)) for batch in forwards]
    first, second = pogm.step(state, forwards, problem), pogm.step(state, backwards, problem)
    torch.testing.assert_close(first[1]["mixture"], second[1]["mixture"].flip(0))
    assert_close(first[0].params, second[0].params)


def test_metric_cosine_is_the_cosine_of_trajectory_and_step():
    pogm = POGM()
    before, after, metrics = one_round(pogm)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(pogm).values()], dim=1)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    torch.testing.assert_close(metrics["cosine"], torch.cosine_similarity(flat, moved[None]))
    assert metrics["gap"] <= 1e-10


def test_live_statistics_become_the_mean_of_the_copies():
    """Spec §1.8, item 16."""
    pogm = POGM()
    state, problem = toy(pogm, batch_norm=True)
    (batch,) = batches()
    after, _ = pogm.step(state, [batch], problem)
    copies = []
    for k in range(K):
        one, single = toy(ERM(), batch_norm=True, domains=1)
        copies.append(ERM().step(one, [Batch(batch.x[k : k + 1], batch.y[k : k + 1])], single)[0].buffers)
    for name in problem.live:
        expected = torch.stack([copy[name].double() for copy in copies]).mean(0)
        torch.testing.assert_close(after.buffers[name].double(), expected)


def test_adam_is_the_default_inner_optimizer():
    assert POGM().optimizer(0.1, 0.2) == Adam(0.1, 0.2)
    assert POGM(inner_optimizer="sgd").optimizer(0.1, 0.2) == SGD(0.1, 0.2)
