"""MGDA: the shortest mixture of the trajectories."""

import torch
from rounds import one_round, trajectories

from pogm.algorithms.mgda import MGDA


def test_every_domain_gains_at_least_the_square_of_the_step():
    method = MGDA(meta_lr=1.0, inner_steps=2)
    before, after, _ = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    assert (flat @ moved).min() >= moved @ moved - 1e-12


def test_no_other_mixture_of_the_trajectories_is_shorter():
    method = MGDA()
    _, _, metrics = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    others = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64)).sample((1000,))
    assert metrics["norm"] <= (others @ flat).norm(dim=1).min() + 1e-12
