"""MLDG."""

import pytest
import torch
from support import K, assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM
from pogm.algorithms.mldg import MLDG, ORDER
from pogm.core import random
from pogm.core.batch import Batch


def pairs_by_hand(order, method):
    """Return the pairs of meta-training and meta-test domains, computed in a loop."""
    if method.pairs == "cyclic":
        return [(order[i], order[(i + 1) % len(order)]) for i in range(len(order))]
    tested = min(method.n_meta_test, len(order) - 1)
    train, test = order[:-tested], order[-tested:]
    return [(i, test[number % tested]) for number, i in enumerate(train)]


@pytest.mark.parametrize(
    ("options", "domains"),
    [({}, 3), ({}, 5), ({"n_meta_test": 1}, 4), ({"n_meta_test": 1}, 2), ({"pairs": "cyclic"}, 4), ({}, 2)],
)
def test_gradient_is_the_sum_over_pairs(options, domains):
    method = MLDG(beta=0.7, **options)
    state, problem = toy(method, domains=domains, weight_decay=0.1)
    state, _ = method.step(state, batches(domains=domains, seed=1), problem)  # the inner Adam is fresh, this one not
    (batch,) = batches(domains=domains)

    def risk(params, k):
        return problem.model(params, state).losses(Batch(batch.x[k : k + 1], batch.y[k : k + 1])).mean()

    total, value = dict.fromkeys(state.params, 0.0), 0.0
    order = random.permutation(method.random_key(state, ORDER), domains).tolist()
    for i, j in pairs_by_hand(order, method):
        weights = [leaf.clone().requires_grad_() for leaf in state.params.values()]
        adam = torch.optim.Adam(weights, lr=0.05, weight_decay=0.1)
        here = grad(risk)(state.params, i)
        for leaf, slope in zip(weights, here.values(), strict=True):
            leaf.grad = slope
        adam.step()
        moved = dict(zip(state.params, [leaf.detach() for leaf in weights], strict=True))
        there = grad(risk)(moved, j)
        total = {n: total[n] + (here[n] + 0.7 * there[n]) / domains for n in total}
        value += (risk(state.params, i) + 0.7 * risk(moved, j)) / domains

    found, loss = method.gradient(state, batch, problem)
    assert_close(found, total)
    torch.testing.assert_close(loss.value, value)


@pytest.mark.parametrize("pairs", ["split", "cyclic"])
def test_one_domain_gives_erm(pairs):
    assert_close(steps(MLDG(pairs=pairs), 4, domains=1).params, steps(ERM(), 4, domains=1).params)


def test_at_least_one_domain_is_for_meta_training():
    """DomainBed would use both of two domains for the meta-test and train on none."""
    before, _ = toy(MLDG(), domains=2)
    after = steps(MLDG(n_meta_test=2), 1, domains=2)
    assert any(not torch.equal(after.params[name], leaf) for name, leaf in before.params.items())


def test_pairs_change_from_step_to_step():
    state, _ = toy(MLDG())
    keys = [MLDG().random_key(state._replace(step=torch.tensor(t)), ORDER) for t in range(30)]
    seen = {MLDG()._draw_pairs(random.permutation(key, 3))[0].item() for key in keys}
    assert seen == {0, 1, 2}


def test_cyclic_pairs_use_every_domain_once_for_training_and_once_for_testing():
    train, test = MLDG.preset("cyclic")._draw_pairs(torch.tensor([2, 0, 3, 1]))
    assert list(zip(train.tolist(), test.tolist(), strict=True)) == [(2, 0), (0, 3), (3, 1), (1, 2)]


def test_batch_norm_is_updated_by_meta_training_passes_only():
    method = MLDG()
    state, problem = toy(method, batch_norm=True)
    (batch,) = batches()
    train, _ = method._draw_pairs(random.permutation(method.random_key(state, ORDER), K))
    after, _ = method.step(state, [batch], problem)
    left = []
    for k in train.tolist():
        model = problem.model(state.params, state)
        model.risks(Batch(batch.x[k : k + 1], batch.y[k : k + 1]))
        left.append(model.buffers)
    name = next(name for name in problem.live if name.endswith("running_mean"))
    torch.testing.assert_close(after.buffers[name], torch.stack([buffers[name] for buffers in left]).mean(0))
