"""RSC."""

import numpy as np
import pytest
import torch
from support import WIDTH, B, C, K, batches, features, toy
from torch import nn
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.algorithms.rsc import RSC, is_below_percentile
from pogm.core.batch import Batch
from pogm.core.model import Network


class DeepHead(RSC):
    """RSC on a head of two layers, which has different gradients for different samples."""

    def build(self, features, width, num_classes, num_domains):
        return Network(features, nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, num_classes)))


def naive_loss(rsc, model, batch):
    """Compute the equation on the pooled batch, with autograd and the percentiles of NumPy."""
    x, y = batch.x.flatten(0, 1), batch.y.flatten(0, 1)
    chosen = y if y.is_floating_point() else nn.functional.one_hot(y, C).double()
    with torch.enable_grad():
        z = model.features(x).requires_grad_()
        (importance,) = torch.autograd.grad((model.head(z) * chosen).sum(), z)
    z = z.detach()
    limits = np.percentile(importance.numpy(), (1 - rsc.feature_drop) * 100, axis=1)
    by_feature = importance.numpy() < limits[:, None]

    def confidence(z):
        return (model.head(z).softmax(1) * chosen).sum(1).numpy()

    hurt = confidence(z) - confidence(z * torch.from_numpy(by_feature))
    by_sample = hurt < np.percentile(hurt, (1 - rsc.sample_drop) * 100)
    kept = torch.from_numpy(by_feature | by_sample[:, None])
    return nn.functional.cross_entropy(model.head(z * kept), y), kept


@pytest.mark.parametrize("cls", [RSC, DeepHead])
@pytest.mark.parametrize("drops", [(1 / 3, 1 / 3), (0.0, 0.0), (0.5, 0.1), (0.21, 0.47), (1.0, 1.0)])
@pytest.mark.parametrize("domains", [1, K])
def test_loss_matches_the_definition(cls, drops, domains):
    rsc = cls(feature_drop=drops[0], sample_drop=drops[1])
    state, problem = toy(rsc, domains=domains)
    (batch,) = batches(domains=domains)
    model = problem.model(state.params, state)
    expected, kept = naive_loss(rsc, model, batch)
    z = model.features(batch.x.flatten(0, 1))
    assert torch.equal(rsc.mask(model, z, batch.y.flatten()), kept)
    loss = rsc.loss(model, batch, state)
    torch.testing.assert_close(loss.value, expected)
    torch.testing.assert_close(loss.metrics["muted"], 1 - kept.double().mean())


def test_mask_of_a_linear_head_tells_the_label():
    """The gradient of the true class's logit is a row of the weights, so that images of one class have one mask."""
    rsc = RSC(sample_drop=1.0)  # all samples are masked
    state, problem = toy(rsc)
    model = problem.model(state.params, state)
    z = torch.randn(40, WIDTH, dtype=torch.float64)
    y = torch.arange(40) % C
    mask = rsc.mask(model, z, y)
    assert all(torch.equal(mask[i], mask[i % C]) for i in range(40))
    assert len({tuple(row.tolist()) for row in mask}) == C


def test_gradient_treats_masks_as_constants():
    rsc = DeepHead()
    state, problem = toy(rsc)
    (batch,) = batches()
    _, kept = naive_loss(rsc, problem.model(state.params, state), batch)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    model = problem.model(leaves, state)
    logits = model.head(model.features(batch.x.flatten(0, 1)) * kept)
    slopes = torch.autograd.grad(nn.functional.cross_entropy(logits, batch.y.flatten()), list(leaves.values()))
    gradient, _ = rsc.gradient(state, batch, problem)
    torch.testing.assert_close(list(gradient.values()), list(slopes))


def test_labels_that_are_probabilities_weight_the_classes():
    state, problem = toy(RSC())
    (batch,) = batches()
    torch.manual_seed(0)
    soft = Batch(batch.x, torch.rand(K, B, C, dtype=torch.float64).softmax(-1))
    model = problem.model(state.params, state)
    torch.testing.assert_close(RSC().loss(model, soft, state).value, naive_loss(RSC(), model, soft)[0])
    sure = Batch(batch.x, nn.functional.one_hot(batch.y, C).double())
    torch.testing.assert_close(RSC().loss(model, sure, state).value, RSC().loss(model, batch, state).value)


@pytest.mark.parametrize(("share", "muted"), [(0.0, 1), (0.25, 26), (1 / 3, 34), (0.5, 51), (1.0, 101)])
def test_masked_fraction_is_the_given_one(share, muted):
    """Rank ⌈100 (1 − share)⌉ and above are masked out of 101 values, independent of rounding."""
    values = torch.randn(7, 101, generator=torch.Generator().manual_seed(0))
    for given in (share, torch.tensor(share)):
        assert (~is_below_percentile(values, 1 - given)).sum(-1).tolist() == [muted] * 7


def test_only_the_largest_values_are_not_below():
    values = torch.tensor([3.0, -1.0, 7.0, 5.0])
    assert is_below_percentile(values, 0.5).tolist() == [True, True, False, False]


def test_ties_at_the_percentile_are_not_below_it():
    values = torch.tensor([[0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    expected = values.numpy() < np.percentile(values.numpy(), 80, axis=1, keepdims=True)
    assert is_below_percentile(values, 0.8).tolist() == expected.tolist() == [[True, False, False, False], [False] * 4]


def test_percentiles_equal_those_of_numpy():
    source = np.random.RandomState(0)
    for _ in range(200):
        values = source.randn(source.randint(2, 40))
        share = source.uniform()
        expected = values < np.percentile(values, share * 100)
        assert is_below_percentile(torch.from_numpy(values), share).tolist() == expected.tolist()


def test_fractions_can_differ_between_trials():
    values = torch.randn(3, 2, 20, generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([0.2, 0.5, 0.9])
    mapped = vmap(is_below_percentile)(values, shares)
    assert torch.equal(
        mapped, torch.stack([is_below_percentile(v, s.item()) for v, s in zip(values, shares, strict=True)])
    )


def test_only_samples_with_the_largest_decrease_are_masked():
    rsc = DeepHead(feature_drop=0.5, sample_drop=0.0)
    state, problem = toy(rsc)
    (batch,) = batches()
    model = problem.model(state.params, state)
    z, y = model.features(batch.x.flatten(0, 1)), batch.y.flatten()
    kept = rsc.mask(model, z, y)
    everywhere = DeepHead(feature_drop=0.5, sample_drop=1.0).mask(model, z, y)
    assert ((~everywhere).sum(1) == WIDTH // 2 + 1).all()

    def confidence(z):
        return model.head(z).softmax(1).gather(1, y[:, None])[:, 0]

    (muted,) = (~kept).any(1).nonzero().flatten().tolist()
    assert muted == (confidence(z) - confidence(z * everywhere)).argmax()
    assert torch.equal(kept[muted], everywhere[muted])


def test_network_without_head_raises():
    class Headless(RSC):
        def build(self, _features, width, num_classes, num_domains):
            return Network(nn.Sequential(features(), nn.Linear(WIDTH, C)), nn.Identity())

    with pytest.raises(UsageError, match="head"):
        toy(Headless())
