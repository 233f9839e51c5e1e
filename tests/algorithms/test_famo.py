"""FAMO: weights learned from the decrease of the losses."""

import pytest
import torch
from rounds import trajectories
from support import K, assert_close, batches, steps, toy
from torchjd import scalarization

from pogm import backward
from pogm._system.errors import UsageError
from pogm.algorithms.famo import FAMO
from pogm.algorithms.reptile import Reptile
from pogm.core import trees
from pogm.core.batch import Batch


def risks(params, state, batch, problem):
    """Return the loss of every domain, in a loop."""
    rows = [Batch(batch.x[k : k + 1], batch.y[k : k + 1]) for k in range(len(batch.y))]
    return torch.stack([problem.model(params, state).losses(row).mean() for row in rows])


def test_rounds_of_one_sgd_step_equal_torchjd_with_sgd():
    """The scalarized loss of TorchJD, its gradient, a step of size α η, and the update of the logits."""
    method = FAMO(inner_optimizer="sgd", meta_lr=0.7, logit_lr=0.1, logit_decay=0.01)
    state, problem = toy(method, lr=0.3)
    theirs = scalarization.FAMO(K, lr=0.1, weight_decay=0.01).double()
    params = state.params
    for number in range(4):
        made = batches(1, seed=number)
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        theirs(risks(leaves, state, made[0], problem)).backward()
        params = {name: (leaf - 0.7 * 0.3 * leaf.grad).detach() for name, leaf in leaves.items()}
        theirs.update(risks(params, state, made[0], problem))
        state, _ = method.step(state, made, problem)
        assert_close(state.params, params, 1e-9)
        torch.testing.assert_close(state.memory["logits"], theirs._w.detach(), rtol=1e-6, atol=1e-9)
    assert state.memory["logits"].abs().max() > 0.05


@pytest.mark.parametrize("options", [{}, {"inner_steps": 3}, {"partition": "layer"}])
def test_first_round_weights_trajectories_by_the_inverse_losses(options):
    method = FAMO(meta_lr=0.7, **options)
    state, problem = toy(method)
    made = batches(method.minibatches)
    losses = method.copies(state, made, problem).losses
    weights = (1 / losses) / (1 / losses).sum()
    after, metrics = method.step(state, made, problem)
    torch.testing.assert_close(metrics["weights"], weights, rtol=1e-6, atol=1e-8)
    assert_close(after.params, trees.move(state.params, trees.combine(weights, trajectories(method)), 0.7), 1e-7)


def test_domain_whose_loss_decreases_most_loses_weight():
    method = FAMO(inner_optimizer="sgd", logit_decay=0.0)
    state, problem = toy(method, lr=0.3)
    (batch,) = batches()
    after, _ = method.step(state, [batch], problem)
    decrease = risks(state.params, state, batch, problem).log() - risks(after.params, state, batch, problem).log()
    assert after.memory["logits"].argmin() == decrease.argmax()
    assert after.memory["logits"].argmax() == decrease.argmin()


def test_single_domain_is_reptile():
    ours, theirs = steps(FAMO(meta_lr=1.0), 3, domains=1), steps(Reptile(meta_lr=1.0), 3, domains=1)
    assert_close(ours.params, theirs.params)


def test_nonfinite_loss_skips_the_round_and_keeps_the_logits():
    method = FAMO()
    state = steps(method, 2)
    _, problem = toy(method)
    (batch,) = batches()
    x = batch.x.clone()
    x[1, 0, 0] = torch.nan
    after, metrics = method.step(state, [batch._replace(x=x)], problem)
    assert_close(after.params, state.params, 0.0)
    assert metrics["nonfinite"].tolist() == [0.0, 1.0, 0.0]
    for name in ("logits", "mean", "square", "count"):
        assert_close(after.memory[name], state.memory[name], 0.0)
    anew, _ = method.step(after, [batch], problem)
    assert trees.all_finite(anew.params)
    assert not torch.equal(anew.params["head.weight"], state.params["head.weight"])


def test_gradients_alone_are_refused():
    module = torch.nn.Linear(2, 2)
    losses = [module(torch.ones(1, 2)).square().mean() for _ in range(2)]
    with pytest.raises(UsageError, match="found FAMO"):
        backward(losses, module.parameters(), FAMO())
