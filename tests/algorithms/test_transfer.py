"""Transfer."""

import copy

import pytest
import torch
from support import assert_close, batches, toy
from torch.nn.functional import cross_entropy

from pogm import ERM
from pogm.algorithms.transfer import Transfer, project


def plain_gap(features, head, batch):
    risks = [cross_entropy(head(features(x)), y) for x, y in zip(batch.x, batch.y, strict=True)]
    return max(risks) - min(risks)


@pytest.mark.parametrize(("gda", "radius"), [(False, 2.0), (False, 0.05), (True, 2.0)])
def test_two_steps_equal_a_plain_torch_implementation(gda, radius):
    method = Transfer(penalty=0.7, radius=radius, ascent_steps=3, lr_d=0.1, gda=gda)
    state, problem = toy(method, weight_decay=0.01)
    network = copy.deepcopy(problem.network).requires_grad_()
    adversary = copy.deepcopy(network.head)
    kind = (lambda leaves: torch.optim.SGD(leaves, 0.05)) if gda else None
    kind = kind or (lambda leaves: torch.optim.Adam(leaves, 0.05, weight_decay=0.01))
    features, head = kind(network.features.parameters()), kind(network.head.parameters())
    ascent = torch.optim.SGD(adversary.parameters(), 0.1)

    def descend(loss, *movers):
        for one in (features, head, ascent):
            one.zero_grad()
        loss.backward()
        for one in movers:
            one.step()

    for batch in batches(2):
        state, metrics = method.step(state, [batch], problem)
        risk = cross_entropy(network(batch.x.flatten(0, 1)), batch.y.flatten())
        descend(risk, features, head)
        gap = 0.7 * plain_gap(network.features, adversary, batch)
        descend(gap, features)
        adversary.load_state_dict(network.head.state_dict())
        for _ in range(3):
            descend(-0.7 * plain_gap(network.features, adversary, batch), ascent)
            pairs = list(zip(adversary.parameters(), network.head.parameters(), strict=True))
            length = sum((a - g).square().sum() for a, g in pairs).sqrt()
            for a, g in pairs:
                a.data = g.data + min(1, radius / length.item()) * (a.data - g.data)
        torch.testing.assert_close(metrics["loss"], risk.detach())
        torch.testing.assert_close(metrics["risk_gap"], gap.detach())
    assert_close(state.params, {n: leaf.detach() for n, leaf in network.named_parameters()}, 1e-8)
    assert_close(state.memory, {f"head.{n}": leaf.detach() for n, leaf in adversary.named_parameters()}, 1e-8)


def test_projection_keeps_the_direction_and_the_radius():
    centre = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0])}
    far = {"a": torch.tensor([4.0, 0.0]), "b": torch.tensor([6.0])}  # at the distance 5
    torch.testing.assert_close(project(far, centre, 2.5), {"a": torch.tensor([2.5, 0.0]), "b": torch.tensor([4.0])})
    torch.testing.assert_close(project(far, centre, 6.0), far)
    torch.testing.assert_close(project(centre, centre, 1.0), centre)


def test_ascent_increases_the_gap_within_the_ball():
    method = Transfer(ascent_steps=20, lr_d=0.1, radius=0.3)
    state, problem = toy(method)
    (batch,) = batches()
    after, _ = method.step(state, [batch], problem)
    model = problem.model(after.params, after)
    gaps = [
        plain_gap(model.features, problem.model({**after.params, **weights}, after).head, batch)
        for weights in ({}, after.memory)
    ]
    assert gaps[1] > gaps[0]
    distance = sum((after.memory[n] - after.params[n]).square().sum() for n in after.memory).sqrt()
    assert distance <= 0.3 + 1e-9


def test_weight_zero_with_sgd_gives_erm():
    method = Transfer(penalty=0.0, gda=True)
    state, problem = toy(method)
    (batch,) = batches()
    after, _ = method.step(state, [batch], problem)
    gradient, _ = ERM().gradient(state, batch, problem)
    assert_close(after.params, {n: leaf - 0.05 * gradient[n] for n, leaf in state.params.items()})
