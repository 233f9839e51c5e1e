"""PCGrad: trajectories without their conflicts."""

import torch
from support import C, assert_close, batches, toy

from pogm import pareto
from pogm.algorithms.pcgrad import ORDER, PCGrad
from pogm.algorithms.reptile import Reptile
from pogm.core import random
from pogm.core.batch import Batch


def test_order_is_random_in_every_round_and_depends_only_on_the_key():
    generator = torch.Generator().manual_seed(4)
    G = pareto.gramian(torch.randn(3, 2, generator=generator, dtype=torch.float64))
    state, _ = toy(PCGrad())
    rounds = [PCGrad().weights(G, state._replace(step=torch.tensor(t))).tolist() for t in range(20)]
    again = [PCGrad().weights(G, state._replace(step=torch.tensor(t))).tolist() for t in range(20)]
    assert rounds == again
    assert len({tuple(weights) for weights in rounds}) > 1


def test_two_conflicting_domains_lose_their_components_along_each_other():
    """Each trajectory is projected once."""
    method = PCGrad(meta_lr=1.0)
    state, problem = toy(method, domains=2)
    (batch,) = batches(domains=2)
    batch = Batch(batch.x[:1].expand_as(batch.x), (batch.y[:1] + torch.tensor([[0], [1]])) % C)
    trajectories = method.copies(state, [batch], problem).trajectories
    a, b = torch.cat([leaf.flatten(1) for leaf in trajectories.values()], dim=1)
    assert a @ b < 0
    expected = (a - (a @ b) / (b @ b) * b + b - (a @ b) / (a @ a) * a) / 2
    after, _ = method.step(state, [batch], problem)
    moved = torch.cat([(after.params[n] - state.params[n]).flatten() for n in state.params])
    torch.testing.assert_close(moved, expected)


def test_without_conflicts_it_equals_reptile():
    (batch,) = batches()
    results = []
    for method in (PCGrad(), Reptile()):
        state, problem = toy(method)
        after, metrics = method.step(state, [batch], problem)
        results.append(after.params)
    assert metrics["agreement"] > 0
    assert_close(*results)


def test_each_domain_has_its_own_order_of_projections():
    """Compare with projections of vectors, in a plane, where three conflict and the order matters."""
    generator = torch.Generator().manual_seed(4)
    H = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    state, _ = toy(PCGrad())
    for t in range(10):
        state = state._replace(step=torch.tensor(t))
        orders = random.uniform(PCGrad().random_key(state, ORDER), (3, 3)).argsort(-1).tolist()
        left = []
        for i, order in enumerate(orders):
            p = H[i]
            for j in order:
                if j != i and p @ H[j] < 0:
                    p = p - (p @ H[j]) / (H[j] @ H[j]) * H[j]
            left.append(p)
        weights = PCGrad().weights(pareto.gramian(H), state)
        torch.testing.assert_close(weights @ H, torch.stack(left).mean(0))
