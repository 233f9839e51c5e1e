"""SelfReg."""

import copy

import pytest
import torch
from support import B, C, K, assert_close, batches, toy
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pogm import Learner
from pogm._system.errors import UsageError
from pogm.algorithms.self_reg import SelfReg, draw_class_permutation
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.losses import probabilities


@pytest.mark.parametrize("train_projection", [True, False])
def test_two_steps_equal_a_plain_torch_implementation(train_projection):
    method = SelfReg(train_projection=train_projection)
    state, problem = toy(method, lr=0.01)
    network = copy.deepcopy(problem.network).requires_grad_()
    names = [n for n, _ in network.named_parameters() if train_projection or not n.startswith("projection.")]
    optimizer = torch.optim.Adam([network.get_parameter(name) for name in names], 0.01)
    for batch in batches(2):
        x, y = batch.x.flatten(0, 1), batch.y.flatten()
        share = random.beta(method.random_key(state, 0), 0.5, ())
        first, second = (draw_class_permutation(y, method.random_key(state, i)) for i in (1, 2))
        state, metrics = method.step(state, [batch], problem)

        z = network.features(x)
        logits, projected = network.head(z), network.projection(z)
        mixed = [share * v[first] + (1 - share) * v[second] for v in (logits, projected)]
        individual = mse_loss(logits, logits[first]) + 0.3 * mse_loss(z, projected[first])
        heterogeneous = mse_loss(logits, mixed[0]) + 0.3 * mse_loss(z, mixed[1])
        risk = cross_entropy(logits, y)
        loss = risk + min(risk.item(), 1.0) * (share * individual + (1 - share) * heterogeneous)
        network.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(metrics["loss"], loss.detach())
        torch.testing.assert_close(metrics["nll"], risk.detach())
    assert_close(state.params, {n: leaf.detach() for n, leaf in network.named_parameters()}, 1e-8)


def test_permutation_maps_every_class_to_itself():
    y = batches()[0].y.flatten()
    seen = torch.zeros(K * B, K * B, dtype=torch.bool)
    for seed in range(200):
        partner = draw_class_permutation(y, random.key(seed))
        assert sorted(partner.tolist()) == list(range(K * B))
        assert torch.equal(y[partner], y)
        seen[torch.arange(K * B), partner] = True
    assert torch.equal(seen, y.unsqueeze(1) == y), "every sample of the class, and also itself"


def test_equal_samples_have_no_distance_of_logits():
    """If all samples are equal, only the distance of features and projections is left."""
    (batch,) = batches()
    same = Batch(batch.x[:1, :1].expand_as(batch.x), batch.y)
    state, problem = toy(SelfReg())
    model = problem.model(state.params, state)
    z = model.features(same.x.flatten(0, 1))
    expected = 0.3 * mse_loss(z, model.part("projection")(z))
    torch.testing.assert_close(SelfReg().loss(model, same, state).metrics["penalty"], expected)


def test_factor_of_the_penalty_is_at_most_one():
    state, problem = toy(SelfReg())
    large = {n: 30 * leaf if n.startswith("head.") else leaf for n, leaf in state.params.items()}
    loss = SelfReg().loss(problem.model(large, state), batches()[0], state)
    assert loss.metrics["nll"] > 1
    torch.testing.assert_close(loss.value, loss.metrics["nll"] + loss.metrics["penalty"])


def test_probabilities_as_labels_raise():
    state, problem = toy(SelfReg())
    (batch,) = batches()
    with pytest.raises(UsageError, match="labels that are classes"):
        SelfReg().step(state, [Batch(batch.x, probabilities(batch.y, C))], problem)


def test_module_of_a_learner_raises():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), SelfReg(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match="with a projection"):
        learner.step(list(zip(x, y, strict=True)))
