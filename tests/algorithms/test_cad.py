"""CAD and CondCAD."""

import math

import pytest
import torch
from support import B, C, K, assert_close, batches, steps, toy

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class
from pogm.algorithms.cad import CAD
from pogm.algorithms.cond_cad import CondCAD
from pogm.core.batch import Batch
from pogm.core.losses import probabilities

both = pytest.mark.parametrize("name", ["CAD", "CondCAD"])


def plain_bottleneck(method, z, y):
    """Return the mean of B_i, sample by sample."""
    rows = [(z[k, b], int(y[k, b]), k) for k in range(z.shape[0]) for b in range(z.shape[1])]
    if method.normalized:
        rows = [(v / v.norm(), c, k) for v, c, k in rows]
    values = []
    for i, (own, label, domain) in enumerate(rows):
        others = [row for j, row in enumerate(rows) if j != i]
        if not any(c == label for _, c, _ in others):
            continue
        if isinstance(method, CondCAD):
            others = [row for row in others if row[1] == label]
        weights = [(torch.exp(own @ v / method.temperature), k) for v, _, k in others]
        counted = [weight for weight, k in weights if (k != domain) == method.flipped]
        if counted:
            share = sum(counted) / sum(weight for weight, _ in weights)
            values.append((-1 if method.flipped else 1) * method.temperature / 0.07 * torch.log(share))
    return sum(values) / len(values)


@both
@pytest.mark.parametrize("flipped", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
def test_loss_is_mean_risk_plus_bottleneck(name, flipped, normalized):
    method = algorithm_class(name)(penalty=3.0, temperature=0.3, flipped=flipped, normalized=normalized)
    state, problem = toy(method)
    (batch,) = batches(size=4)
    batch.y[0, 0] = C  # a class that occurs once
    model = problem.model(state.params, state)
    z = torch.stack([model.features(x) for x in batch.x])
    expected = plain_bottleneck(method, z, batch.y)
    torch.testing.assert_close(method.bottleneck(z, batch.y), expected)
    batch.y[0, 0] = 0
    loss = method.loss(model, batch, state)
    torch.testing.assert_close(loss.value, loss.metrics["nll"] + 3 * plain_bottleneck(method, z, batch.y))
    torch.testing.assert_close(loss.metrics["nll"], model.risks(batch).mean())


@both
def test_known_value_of_equal_features(name):
    """With equal features and one class, (K − 1) B of the K B − 1 other samples are of other domains."""
    method = algorithm_class(name)(temperature=0.07)
    found = method.bottleneck(torch.ones(K, B, 2), torch.zeros(K, B, dtype=torch.int64))
    assert found.item() == pytest.approx(-math.log((K - 1) * B / (K * B - 1)), rel=1e-5)


@both
def test_weight_zero_or_one_domain_gives_erm(name):
    method = algorithm_class(name)
    assert_close(steps(method(penalty=0.0), 4).params, steps(ERM(), 4).params)
    assert_close(steps(method(), 4, domains=1).params, steps(ERM(), 4, domains=1).params)


@both
def test_training_mixes_the_domains(name):
    method = algorithm_class(name)(penalty=100.0)
    state, problem = toy(method)
    values = []
    for _ in range(20):
        state, metrics = method.step(state, batches(), problem)
        values.append(metrics["penalty"])
    assert values[-1] < values[0] / 2


def test_conditional_bottleneck_ignores_other_classes():
    z = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]])
    halves = [CondCAD().bottleneck(z[:, part], y[:, part]) for part in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(CondCAD().bottleneck(z, y), sum(halves) / 2)
    assert not torch.isclose(CAD().bottleneck(z, y), CondCAD().bottleneck(z, y))


@both
def test_large_features_have_finite_gradients(name):
    z = (100 * torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    y = torch.tensor([[0, 1, 2], [0, 3, 4]])
    (slope,) = torch.autograd.grad(algorithm_class(name)().bottleneck(z, y), z)
    assert slope.isfinite().all()


@both
def test_probabilities_as_labels_raise(name):
    method = algorithm_class(name)()
    state, problem = toy(method)
    (batch,) = batches()
    with pytest.raises(UsageError, match="labels that are classes"):
        method.step(state, [Batch(batch.x, probabilities(batch.y, C))], problem)
