"""IB-IRM."""

import pytest
import torch
from support import assert_close, batches, steps, toy

from pogm import IRM
from pogm._system.errors import UsageError
from pogm.algorithms.ib_erm import IBERM
from pogm.algorithms.ib_irm import IBIRM


@pytest.mark.parametrize(("step", "irm", "ib"), [(0, 1, 0), (2, 1, 5), (4, 7, 5)])
def test_loss_is_that_of_irm_plus_the_weighted_variance(step, irm, ib):
    method = IBIRM(penalty=7.0, penalty_anneal_iters=3, bottleneck=5.0, bottleneck_anneal_iters=2)
    state, problem = toy(method)
    state = state._replace(step=torch.tensor(step))
    (batch,) = batches(size=7)
    model = problem.model(state.params, state)
    loss = method.loss(model, batch, state)
    first = IRM(penalty=1.0).loss(model, batch, state).metrics
    second = IBERM().loss(model, batch, state).metrics
    torch.testing.assert_close(loss.metrics["nll"], first["nll"])
    torch.testing.assert_close(loss.metrics["penalty"], first["penalty"])
    torch.testing.assert_close(loss.metrics["feature_variance"], second["penalty"])
    torch.testing.assert_close(loss.value, first["nll"] + irm * first["penalty"] + ib * second["penalty"])


def test_without_bottleneck_it_is_irm():
    method = IBIRM(penalty=7.0, penalty_anneal_iters=2, bottleneck=0.0, bottleneck_anneal_iters=2)
    assert_close(steps(method, 4).params, steps(IRM(penalty=7.0, penalty_anneal_iters=2), 4).params)


def test_adam_is_reset_at_both_changes():
    method = IBIRM(penalty_anneal_iters=2, bottleneck_anneal_iters=5)
    state, problem = toy(method)
    counts = []
    for number in range(7):
        state, _ = method.step(state, batches(seed=number), problem)
        counts.append(state.optimizer["count"].item())
    assert counts == [1, 2, 1, 2, 3, 1, 2]


def test_one_sample_per_domain_raises():
    state, problem = toy(IBIRM())
    with pytest.raises(UsageError, match="at least 2 samples"):
        IBIRM().step(state, batches(size=1), problem)
