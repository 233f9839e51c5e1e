"""SAGM."""

import torch
from support import assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM
from pogm.algorithms.sagm import SAGM


def test_gradient_is_the_mean_at_theta_and_at_the_perturbed_point():
    method = SAGM(rho=0.3, alpha=0.2)
    state, problem = toy(method)
    (batch,) = batches()

    def risk(params):
        return problem.model(params, state).risks(batch).mean()

    here = grad(risk)(state.params)
    norm = sum((leaf**2).sum() for leaf in here.values()).sqrt()
    nearby = {n: leaf + 0.3 * here[n] / norm - 0.2 * here[n] for n, leaf in state.params.items()}
    there = grad(risk)(nearby)
    found, loss = method.gradient(state, batch, problem)
    assert_close(found, {n: 0.5 * here[n] + 0.5 * there[n] for n in here})
    torch.testing.assert_close(loss.value, risk(state.params))


def test_zero_perturbation_gives_erm():
    assert_close(steps(SAGM(rho=0.0, alpha=0.0), 5).params, steps(ERM(), 5).params)


def test_second_pass_does_not_update_batch_norm():
    erm, sagm = steps(ERM(), 1, batch_norm=True), steps(SAGM(), 1, batch_norm=True)
    assert_close(sagm.buffers, erm.buffers)


def test_zero_gradient_gives_finite_weights():
    method = SAGM()
    state, problem = toy(method)
    (batch,) = batches()
    zero = {n: leaf * 0 for n, leaf in state.params.items()}
    even = torch.full((*batch.y.shape, 4), 0.25, dtype=torch.float64)
    found, _ = method.gradient(state._replace(params=zero), batch._replace(y=even), problem)
    assert all(leaf.abs().max() < 1e-12 for leaf in found.values())


def test_one_domain_works():
    assert steps(SAGM(), 2, domains=1).step == 2
