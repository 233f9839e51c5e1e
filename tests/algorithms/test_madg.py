"""MADG."""

import copy
import dataclasses
import math

import pytest
import torch
from support import C, K, assert_close, batches, toy
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import Learner
from pogm._system.errors import UsageError
from pogm.algorithms.madg import MADG
from pogm.core.batch import Batch
from pogm.core.losses import probabilities


class Reversal(torch.autograd.Function):
    """The identity, with the gradient multiplied by −β."""

    @staticmethod
    def forward(ctx, z, beta):
        ctx.beta = beta
        return z.clone()

    @staticmethod
    def backward(ctx, slopes):
        return -ctx.beta * slopes, None


def without_dropout(state):
    return state._replace(
        buffers={n: torch.zeros_like(b) if n.endswith(".rate") else b for n, b in state.buffers.items()}
    )


def plain(network, batch, margin, beta):
    """Return Σ T_ij with a gradient-reversal layer, pair by pair."""
    count, size = batch.y.shape
    z = network.head.bottleneck(network.features(batch.x.flatten(0, 1)))
    guess = network.head.classifier(z).argmax(1).view(count, size)
    z = Reversal.apply(z, beta).view(count, size, -1)
    total, number = 0.0, 0
    for i in range(count):
        for j in range(i + 1, count):
            rival = network.rivals[number]
            total += margin * cross_entropy(rival(z[i]), guess[i])
            for row, wrong in zip(rival(z[j]), guess[j], strict=True):
                total -= torch.log(torch.clamp(1 - row.softmax(0)[wrong] + 1e-6, max=1)) / size
            number += 1
    return total


@pytest.mark.parametrize("domains", [K, 2])
@pytest.mark.parametrize("as_released", [False, True])
def test_two_steps_equal_a_plain_torch_implementation_with_reversal_layer(domains, as_released):
    madg = MADG(width=7, margin=3.0, reversal=0.2, as_released=as_released)
    state, problem = toy(madg, weight_decay=0.01, domains=domains, lr=0.01)
    state = without_dropout(state)._replace(step=torch.tensor(700))
    network = copy.deepcopy(problem.network).requires_grad_()
    for name, buffer in network.named_buffers():
        if name.endswith(".rate"):
            buffer.zero_()
    parts = {"features": network.features, **dict(network.head.named_children()), "rivals": network.rivals}
    movers = {
        name: torch.optim.Adam(part.parameters(), 0.01 if name == "features" else 0.05, weight_decay=0.01)
        for name, part in parts.items()
    }
    for number, batch in enumerate(batches(2, domains=domains)):
        t = 1 if as_released else 700 + number
        beta = 0.4 / (1 + math.exp(-t / 1000)) - 0.2
        network.zero_grad()
        logits = network(batch.x.flatten(0, 1)).view(*batch.y.shape, C)
        risks = torch.stack([cross_entropy(logits[k], batch.y[k]) for k in range(domains)])
        risks.sum().backward()
        for name in ("features", "bottleneck", "classifier"):
            movers[name].step()
        if not as_released:
            network.zero_grad()
        total = plain(network, batch, 3.0, beta)
        total.backward()
        for name in ("features", "bottleneck", "rivals"):
            movers[name].step()

        state, metrics = madg.step(state, [batch], problem)
        torch.testing.assert_close(metrics["loss"], risks.mean().detach())
        torch.testing.assert_close(metrics["disagreement"], total.detach())
    assert_close(state.params, {n: p.detach() for n, p in network.named_parameters()}, 1e-7)
    found = {name: state.buffers[name] for name in problem.live}
    assert_close(found, {name: dict(network.named_buffers())[name] for name in problem.live}, 1e-7)


def test_constant_rival_has_a_known_loss():
    """Each of three pairs has the loss γ log C − log(1 − 1/C)."""
    madg = MADG(margin=2.0)
    state, problem = toy(madg)
    params = {n: torch.zeros_like(p) if n.startswith("rivals.") else p for n, p in state.params.items()}
    (batch,) = batches()
    found = madg.rival_loss(batch, problem.model(params, state)).value
    torch.testing.assert_close(found.item(), 3 * (2 * math.log(C) - math.log(1 - 1 / C + 1e-6)))


@pytest.mark.parametrize(("chosen", "each"), [(1, -math.log(1e-6)), (2, 2 * 1e4)])
def test_certain_rival_has_a_finite_loss(chosen, each):
    """The rival is certain of class 1, the output of the classifier, or of another class."""
    madg = MADG(margin=2.0)
    state, problem = toy(madg)
    params = dict(state.params)
    for part, guess in (("head.classifier", 1), *((f"rivals.{pair}", chosen) for pair in range(3))):
        params[f"{part}.3.weight"] = torch.zeros_like(params[f"{part}.3.weight"])
        params[f"{part}.3.bias"] = 1e4 * (torch.arange(C) == guess).double()
    found = madg.rival_loss(batches()[0], problem.model(params, state)).value
    torch.testing.assert_close(found.item(), 3 * each, rtol=1e-12, atol=0)


@pytest.mark.parametrize("t", [0, 1, 500, 2000, 50000])
def test_reversal_weight_grows_as_in_mdd(t):
    state, _ = toy(MADG())
    found = MADG().reversal_weight(state._replace(step=torch.tensor(t)))
    torch.testing.assert_close(found.item(), 0.2 / (1 + math.exp(-t / 1000)) - 0.1)
    released = MADG(as_released=True).reversal_weight(state._replace(step=torch.tensor(t)))
    assert abs(released.item() - 5e-5) < 1e-9


def test_each_update_changes_only_its_parts():
    madg = MADG()
    state, problem = toy(madg)
    after, _ = madg.step(state, batches(), problem)
    counts = {who: kept["count"].item() for who, kept in after.optimizer.items()}
    assert counts == {"features": 2, "bottleneck": 2, "classifier": 1, "rivals": 1}


def test_networks_have_the_published_initialisation():
    torch.manual_seed(0)
    network = MADG(width=500).build(nn.Identity(), 400, C, 5)
    assert len(network.rivals) == 10
    assert [type(layer).__name__ for layer in network.head.bottleneck] == ["Linear", "BatchNorm1d", "ReLU", "Dropout"]
    for part, layer, deviation in ((network.head.bottleneck, 0, 0.005), (network.rivals[3], 0, 0.01)):
        assert abs(part[layer].weight.std() / deviation - 1) < 0.01
    for classifier in (network.head.classifier, *network.rivals):
        assert [type(layer).__name__ for layer in classifier] == ["Linear", "ReLU", "Dropout", "Linear"]
        assert classifier[0].weight.shape == (500, 500)
        assert not classifier[0].bias.any()
        assert not classifier[3].bias.any()


def test_two_updates_have_separate_dropout_masks():
    """With learning rate 0, only the dropout masks differ."""
    madg = MADG()
    state, problem = toy(madg, lr=1e-15)
    (batch,) = batches()
    first, second = (
        madg.rival_loss(batch, problem.model(s.params, s)).value
        for s in (state._replace(key=madg.random_key(state, move)) for move in range(2))
    )
    assert not torch.isclose(first, second)
    torch.testing.assert_close(madg.step(state, [batch], problem)[1]["disagreement"], second)


def test_prediction_uses_the_classifier():
    state, problem = toy(MADG())
    problem.network.eval()
    (batch,) = batches()
    other = {n: p + 1 if n.startswith("rivals.") else p for n, p in state.params.items()}
    first, second = (MADG().predict(problem.model(params, state), batch.x[0]) for params in (state.params, other))
    assert first.shape == (batch.y.shape[1], C)
    assert torch.equal(first, second)


def test_labels_can_be_probabilities():
    state, problem = toy(MADG())
    (batch,) = batches()
    soft = Batch(batch.x, probabilities(batch.y, C).double())
    assert_close(*(MADG().step(state, [one], problem) for one in (batch, soft)))


def test_hyperparameters_can_be_tensors():
    numbers = {"margin": torch.tensor(2.0), "reversal": torch.tensor(0.1, dtype=torch.float64)}
    state, problem = toy(MADG())
    state = state._replace(step=torch.tensor(900))
    assert_close(*(one.step(state, batches(), problem) for one in (MADG(), dataclasses.replace(MADG(), **numbers))))


def test_module_of_a_learner_raises():
    learner = Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, C)), MADG(), head="1")
    x, y = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"optimizer group|networks of its own"):
        learner.step(list(zip(x, y, strict=True)))
