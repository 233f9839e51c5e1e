"""GroupDRO."""

import torch
from support import K, batches, steps, toy

from pogm import ERM
from pogm.algorithms.group_dro import GroupDRO
from pogm.core.batch import Batch


def gradient_and_loss(dro, batch, domains=K, **memory):
    state, problem = toy(dro, domains=domains)
    state = state._replace(memory=memory or state.memory)
    gradient, loss = dro.gradient(state, batch, problem)
    return gradient, loss, problem.model(state.params, state).risks(batch)


def test_weights_follow_the_published_recursion():
    """q_k <- q_k exp(eta L_k), then divided by the sum; from all ones."""
    dro = GroupDRO(eta=0.3)
    state, problem = toy(dro)
    q = torch.ones(K, dtype=torch.float64)
    for seed in range(4):
        (batch,) = batches(seed=seed)
        risks = problem.model(state.params, state).risks(batch)
        q = torch.stack([q[k] * torch.exp(0.3 * risks[k]) for k in range(K)])
        q = q / q.sum()
        state, metrics = dro.step(state, [batch], problem)
        torch.testing.assert_close(metrics["weights"], q)
        torch.testing.assert_close(metrics["loss"], (q * risks).sum())
        torch.testing.assert_close(state.memory["log_weights"].exp(), q)


def test_gradient_treats_weights_as_constants():
    (batch,) = batches()
    found, loss, _ = gradient_and_loss(GroupDRO(eta=2.0), batch)
    state, problem = toy(ERM())
    expected = {name: torch.zeros_like(leaf) for name, leaf in state.params.items()}
    for k in range(K):
        own, _ = ERM().gradient(state, Batch(batch.x[k : k + 1], batch.y[k : k + 1]), problem)
        expected = {name: leaf + loss.metrics["weights"][k] * own[name] for name, leaf in expected.items()}
    torch.testing.assert_close(found, expected)


def test_weights_stay_on_the_simplex():
    weights = steps(GroupDRO(eta=0.1), 20).memory["log_weights"].exp()
    torch.testing.assert_close(weights.sum(), torch.ones((), dtype=torch.float64))
    assert (weights > 0).all()


def test_worst_domain_gains_weight_and_best_domain_loses_weight():
    (batch,) = batches()
    _, loss, risks = gradient_and_loss(GroupDRO(eta=0.1), batch)
    weights = loss.metrics["weights"]
    assert weights.argsort().tolist() == risks.argsort().tolist()
    assert weights[risks.argmax()] > 1 / K > weights[risks.argmin()]


def test_large_risks_and_small_weights_stay_finite():
    (batch,) = batches()
    far = Batch(batch.x * 1e4, batch.y)
    tiny = torch.tensor([0.0, -2000.0, -3000.0], dtype=torch.float64)
    gradient, loss, risks = gradient_and_loss(GroupDRO(eta=1.0), far, log_weights=tiny)
    assert all(leaf.isfinite().all() for leaf in gradient.values())
    kept = loss.memory["log_weights"]
    assert kept.isfinite().all()
    torch.testing.assert_close(kept[1] - kept[2], 1000 + risks[1] - risks[2])


def test_eta_zero_or_one_domain_gives_erm():
    state, problem = toy(ERM())
    (batch,) = batches()
    torch.testing.assert_close(gradient_and_loss(GroupDRO(eta=0.0), batch)[0], ERM().gradient(state, batch, problem)[0])
    state, problem = toy(ERM(), domains=1)
    (batch,) = batches(domains=1)
    torch.testing.assert_close(
        gradient_and_loss(GroupDRO(eta=1.0), batch, domains=1)[0], ERM().gradient(state, batch, problem)[0]
    )
    assert GroupDRO.min_domains == 1
