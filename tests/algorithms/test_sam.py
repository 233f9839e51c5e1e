"""SAM."""

import torch
from support import assert_close, batches, steps, toy
from torch.func import grad

from pogm import ERM, SAM


def test_gradient_is_that_at_the_perturbed_point_and_loss_is_that_at_theta():
    method = SAM(rho=0.3)
    state, problem = toy(method)
    (batch,) = batches()

    def risk(params):
        return problem.model(params, state).risks(batch).mean()

    here = grad(risk)(state.params)
    norm = sum((leaf**2).sum() for leaf in here.values()).sqrt()
    nearby = {name: leaf + 0.3 * here[name] / norm for name, leaf in state.params.items()}
    found, loss = method.gradient(state, batch, problem)
    assert_close(found, grad(risk)(nearby))
    torch.testing.assert_close(loss.value, risk(state.params))


def test_perturbation_has_length_rho_and_increases_the_loss():
    """For a small ρ the loss grows by ρ ‖∇L‖; no other direction of this length increases it more."""
    state, problem = toy(SAM())
    (batch,) = batches()

    def risk(params):
        return problem.model(params, state).risks(batch).mean()

    gradient = grad(risk)(state.params)
    norm = sum((leaf**2).sum() for leaf in gradient.values()).sqrt()
    nearby = {name: leaf + 1e-4 * gradient[name] / norm for name, leaf in state.params.items()}
    torch.testing.assert_close(risk(nearby) - risk(state.params), 1e-4 * norm, rtol=1e-2, atol=0)


def test_zero_radius_gives_erm():
    assert_close(steps(SAM(rho=0.0), 5).params, steps(ERM(), 5).params, 0.0)


def test_second_pass_does_not_update_batch_norm():
    erm, sam = steps(ERM(), 1, batch_norm=True), steps(SAM(), 1, batch_norm=True)
    assert_close(sam.buffers, erm.buffers)


def test_zero_gradient_gives_finite_weights():
    method = SAM()
    state, problem = toy(method)
    (batch,) = batches()
    zero = {name: leaf * 0 for name, leaf in state.params.items()}
    even = torch.full((*batch.y.shape, 4), 0.25, dtype=torch.float64)
    found, _ = method.gradient(state._replace(params=zero), batch._replace(y=even), problem)
    assert all(leaf.abs().max() < 1e-12 for leaf in found.values())
