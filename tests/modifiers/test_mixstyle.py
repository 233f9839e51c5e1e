"""MixStyle: mixing of the styles of early feature maps."""

import copy

import pytest
import torch
from promises import (
    accuracy,
    assert_batched_equals_single,
    assert_captured_equals_the_host,
    assert_domains_by_vmap_equal_a_loop,
    assert_resumes,
    modified,
    session,
)
from scipy.stats import kstest
from support import needs_gpu
from torch import nn

from pogm import ERM, POGM, Fish, Learner, Mixup
from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.model import Network
from pogm.core.random_layers import key_buffers
from pogm.models import build_features
from pogm.modifiers import all_modifiers
from pogm.modifiers.mixstyle import MixStyle, StyleMixing
from pogm.modifiers.styles import EPS

ALWAYS = MixStyle(probability=1.0, alpha=0.5)


def maps(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return plain * (1 + torch.rand(*shape[:2], 1, 1, generator=generator)) + torch.rand(*shape[:2], 1, 1) * 3


def layer(seed=0, probability=1.0, alpha=0.5):
    made = StyleMixing(probability, alpha)
    made.key = random.key(seed)
    return made


def style(h):
    return h.mean((2, 3)), h.var((2, 3), correction=1).add(EPS).sqrt()


def drawn(seed, count, alpha=0.5):
    """Return the partners and shares that the layer draws with a seed."""
    key = random.key(seed)
    partner = random.permutation(random.fold(key, 0), count)
    return partner, random.beta(random.fold(key, 1), torch.tensor(alpha).double(), (count,))


def test_mixing_matches_the_equation():
    h = maps(5, 3, 4, 6)
    partner, share = drawn(7, 5)
    expected = torch.empty_like(h)
    for n in range(5):
        other, lam = h[partner[n]], share[n]
        for c in range(3):
            mu, sigma = h[n, c].mean(), (h[n, c].var() + 1e-6) ** 0.5
            mu_q, sigma_q = other[c].mean(), (other[c].var() + 1e-6) ** 0.5
            normal = (h[n, c] - mu) / sigma
            expected[n, c] = normal * (lam * sigma + (1 - lam) * sigma_q) + lam * mu + (1 - lam) * mu_q
    torch.testing.assert_close(layer(7)(h), expected, rtol=1e-12, atol=1e-12)


def test_new_style_is_a_mixture_and_content_is_unchanged():
    h = maps(6, 2, 5, 5)
    partner, share = drawn(1, 6)
    after = layer(1)(h)
    for new, old in zip(style(after), style(h), strict=True):
        expected = share[:, None] * old + (1 - share[:, None]) * old[partner]
        torch.testing.assert_close(new, expected, rtol=1e-5, atol=1e-5)
    content = [(x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True) for x in (h, after)]
    torch.testing.assert_close(*content, rtol=1e-5, atol=1e-5)


def test_pass_with_one_image_is_unchanged():
    h = maps(1, 2, 5, 5)
    torch.testing.assert_close(layer()(h), h)


def test_pass_is_mixed_with_the_given_probability():
    h = maps(4, 2, 3, 3)
    mixed = []
    for seed in range(300):
        moved = (layer(seed, probability=0.25)(h) != h).flatten(1).any(1)
        others = drawn(seed, 4)[0] != torch.arange(4)
        assert moved[others].all() or not moved.any()
        if others.any():
            mixed.append(bool(moved.any()))
    assert abs(sum(mixed) / len(mixed) - 0.25) < 0.1


def test_shares_have_a_beta_distribution():
    """The share is measured by the mean of an image, between that of its image and of its partner."""
    h = torch.arange(2000, dtype=torch.float64)[:, None, None, None] + torch.tensor([[[0.0, 1.0]]])
    partner = drawn(0, 2000)[0]
    before = h.mean((1, 2, 3))
    way = layer(0, alpha=0.5)(h).mean((1, 2, 3)) - before
    shares = 1 - way / (before[partner] - before)
    assert kstest(shares[partner != torch.arange(2000)], "beta", (0.5, 0.5)).pvalue > 1e-3


def test_no_gradient_flows_through_the_style():
    h = maps(3, 2, 4, 4).requires_grad_()
    partner, share = drawn(0, 3)
    weight = maps(3, 2, 4, 4, seed=5)
    (slope,) = torch.autograd.grad((layer(0)(h) * weight).sum(), h)
    deviation = style(h.detach())[1]
    factor = (share[:, None] * deviation + (1 - share[:, None]) * deviation[partner]) / deviation
    torch.testing.assert_close(slope, weight * factor[:, :, None, None])


def test_evaluation_is_unchanged():
    h = maps(4, 2, 3, 3)
    assert layer().eval()(h) is h


def test_half_precision_maps_are_mixed_in_float32():
    h = maps(4, 2, 8, 8)
    after = layer()(h.bfloat16())
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after.float(), layer()(h).float(), rtol=0.05, atol=0.05)


def network(name="mnist_cnn", shape=(1, 8, 8)):
    features, width = build_features(name, shape)
    return Network(features, nn.Linear(width, 4))


@pytest.mark.parametrize("name", ["mnist_cnn", "resnet18", "mobilenet_v2"])
def test_names_of_weights_and_predictions_do_not_change(name):
    plain = network(name, (3, 64, 64)).eval()
    before, x = plain.state_dict(), torch.rand(2, 3, 64, 64)
    expected = plain(x)
    after = MixStyle(blocks=3, probability=1.0).network(plain)
    assert after.state_dict().keys() == before.keys()
    assert torch.equal(after.eval()(x), expected)
    change_outputs = tuple(name for name, block in after.features.named_modules() if block._forward_hooks)
    assert change_outputs == after.features.blocks[:3]
    assert {f"mixstyle{index}.key" for index in range(3)} <= set(key_buffers(after))


def test_blocks_and_steps_have_independent_random_numbers():
    made = session(modified(ERM(), ALWAYS))
    keys = []
    for _ in range(2):
        model = made.config.problem.model(made.train_state.state.params, made.train_state.state)
        keys += [int(model.buffers[f"mixstyle{index}.key"]) for index in (0, 1)]
        made.step()
    assert len(set(keys)) == 4


def test_erm_with_mixstyle_equals_erm_on_mixed_maps():
    made = session(modified(ERM(), ALWAYS))
    state, problem = made.train_state.state, made.config.problem
    x = torch.rand(12, 1, 8, 8, dtype=torch.float64)
    model = problem.model(state.params, state)
    blocks = problem.network.features
    h = x
    for name, block in blocks.named_children():
        h = block.forward(h)
        if name in ("block1", "block2"):
            index = int(name[-1]) - 1
            mixing = StyleMixing(1.0, 0.5)
            mixing.key = model.buffers[f"mixstyle{index}.key"]
            h = mixing(h)
    torch.testing.assert_close(model.features(x), h)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), Fish()], ids=lambda a: type(a).__name__)
def test_batched_trials_equal_single_trials(algorithm):
    assert_batched_equals_single(algorithm, MixStyle(probability=0.9), Mixup())


def test_vmap_over_domains_equals_loop():
    assert_domains_by_vmap_equal_a_loop(POGM(), ALWAYS)


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(Fish(), ALWAYS, Mixup())


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM()], ids=lambda a: type(a).__name__)
def test_captured_steps_equal_steps_on_the_cpu(algorithm):
    assert_captured_equals_the_host(algorithm, ALWAYS, network="mnist_cnn")


def test_accuracy_is_above_chance():
    assert accuracy(ERM(), MixStyle(), network="mnist_cnn", batch_size=8, lr=3e-3) > 0.5


def test_networks_without_blocks_raise():
    with pytest.raises(UsageError, match="names its blocks"):
        session(modified(ERM(), MixStyle(), network="mlp"))
    with pytest.raises(UsageError, match="names its blocks"):
        Learner(nn.Sequential(nn.Linear(2, 3)), ERM(), modifiers=[MixStyle()])
    with pytest.raises(UsageError, match="at most the network's 4"):
        MixStyle(blocks=5).network(network())


def test_maps_without_positions_raise():
    with pytest.raises(UsageError, match="two positions"):
        layer()(torch.zeros(3, 4, 1, 1))


def test_learner_with_named_blocks_works():
    features, width = build_features("mnist_cnn", (1, 8, 8))
    features.head = nn.Linear(width, 3)
    features.blocks = ("block1", "block2")
    plain, mixed = (
        Learner(module, ERM(), modifiers=modifiers)
        for module, modifiers in ((features, []), (copy.deepcopy(features), [ALWAYS]))
    )
    x, y = torch.rand(2, 4, 1, 8, 8), torch.randint(3, (2, 4))
    losses = [learner.step([(x[0], y[0]), (x[1], y[1])])["loss"] for learner in (plain, mixed)]
    assert losses[0] != losses[1]


def test_modifier_is_registered():
    assert all_modifiers()["MixStyle"] is MixStyle
