"""MIRO: the distance of the features to those of the initial network."""

import math

import pytest
import torch
from promises import (
    assert_batched_equals_single,
    assert_captured_equals_the_host,
    assert_domains_by_vmap_equal_a_loop,
    assert_resumes,
    modified,
    session,
)
from support import assert_close, batches, needs_gpu
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from pogm import ERM, MIRO, POGM, SWAD, Learner
from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.model import Network
from pogm.core.problem import live_buffers
from pogm.models import build_features
from pogm.modifiers.mixstyle import MixStyle


def outputs(features, names, x):
    """Return the outputs of some layers, by hooks."""
    found, hooks = {}, []
    for name in names:
        keep = lambda module, inputs, output, name=name: found.update({name: output})  # noqa: E731
        hooks.append(features.get_submodule(name).register_forward_hook(keep))
    features(x)
    for hook in hooks:
        hook.remove()
    return [found[name] for name in names]


def build(network, shape, miro):
    torch.manual_seed(0)
    features, width = build_features(network, shape, weights="random")
    return miro.network(Network(features, nn.Linear(width, 4))).double().train()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mnist_cnn", ["block1", "block2", "block3", "block4"]),
        ("resnet18", ["maxpool", "layer1", "layer2", "layer3", "layer4"]),
        ("mobilenet_v2", ["features.2", "features.3", "features.6", "features.13", "features.17"]),
        ("mlp", [""]),
    ],
)
def test_distance_equals_the_equation_computed_layer_by_layer(name, layers):
    shape = (2, 8, 8) if name == "mlp" else (2, 32, 32)
    network = build(name, shape, MIRO())
    x, first = torch.randn(3, *shape, dtype=torch.float64), None
    with torch.no_grad():
        for leaf in network.features.parameters():
            first = leaf.clone() if first is None else first
            leaf += 0.01 * torch.randn_like(leaf)
        for leaf in network.miro.variances:
            leaf += 0.1 * torch.rand_like(leaf)
        initial = build(name, shape, MIRO()).features.eval()
        assert torch.equal(next(initial.parameters()), first)
        expected = torch.zeros(3, dtype=torch.float64)
        now, before = outputs(network.features, layers, x), outputs(initial, layers, x)
        for current, old, scaled in zip(now, before, network.miro.variances, strict=True):
            variance = (softplus(10 * scaled) + 1e-5).view(-1, *[1] * (current.ndim - 2))
            expected += ((current - old) ** 2 / variance + variance.log()).flatten(1).mean(1) / 2
        found = network.miro(x)
    torch.testing.assert_close(found[:, -1], expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[:, :-1], network.features(x), rtol=1e-10, atol=1e-12)


def test_risk_is_the_cross_entropy_plus_the_weighted_distance():
    made = session(modified(ERM(), MIRO(weight=0.5)))
    for _ in range(2):
        made.step()
    state, config = made.train_state.state, made.config
    (batch,) = config.batches(state, made.sample_indices)
    model = config.problem.model(state.params, state)
    tensors = {**state.params, **state.buffers}
    for domain in range(2):
        x, y = batch.x[domain], batch.y[domain]
        found = functional_call(made.network, tensors, (x,), {"part": "miro"})
        expected = cross_entropy(functional_call(made.network, tensors, (x,)), y) + 0.5 * found[:, -1].mean()
        torch.testing.assert_close(model.risks(batch)[domain], expected)


def test_first_variances_are_a_tenth_and_the_first_distance_is_constant():
    network = build("mnist_cnn", (2, 28, 28), MIRO())
    for scaled in network.miro.variances:
        torch.testing.assert_close(softplus(10 * scaled) + 1e-5, torch.full_like(scaled, 0.1), rtol=1e-6, atol=0)
    found = network.miro(torch.randn(2, 2, 28, 28, dtype=torch.float64))[:, -1]
    torch.testing.assert_close(found, torch.full_like(found, 4 * math.log(0.1) / 2), rtol=1e-6, atol=0)


def test_variances_are_trained_ten_times_as_fast_and_frozen_features_never_change():
    made = session(modified(ERM(), MIRO()))
    before = trees.map_leaves(torch.clone, made.train_state.state)
    made.step()
    after, name = made.train_state.state, "miro.variances.0"
    step = 10 * (after.params[name] - before.params[name])  # of b; the first step of Adam has the length of its rate
    torch.testing.assert_close(step.abs(), torch.full_like(step, 10 * made.config.rates.lr), rtol=1e-3, atol=0)
    for _ in range(2):
        made.step()
    frozen = {name for name in before.buffers if name.startswith("miro.frozen.")}
    assert len(frozen) == len([name for name in before.params if name.startswith("features.")])
    for name in frozen:
        assert torch.equal(made.train_state.state.buffers[name], before.buffers[name])


def test_large_weight_keeps_the_features_closer():
    def change(weight):
        made = session(modified(ERM(), MIRO(weight=weight)))
        first = made.predicting_tensors()
        first = {name: leaf.clone() for name, leaf in first.items() if name.startswith("features.")}
        for _ in range(12):
            made.step()
        part = made.network.get_submodule("miro")
        x = made.config.batches(made.train_state.state, made.sample_indices)[0].x[0]
        tensors = {**made.train_state.state.params, **made.train_state.state.buffers}
        z, z0 = (functional_call(made.network, tensors | old, (x,), {"part": "features"}) for old in ({}, first))
        assert part.training
        return (z - z0).square().mean()

    assert change(10.0) < change(0.0) / 2


def test_weight_0_gives_erm():
    with_, without = session(modified(ERM(), MIRO(weight=0.0))), session(modified(ERM()))
    for made in (with_, without):
        for _ in range(3):
            made.step()
    expected = without.train_state.state.params
    found = {name: with_.train_state.state.params[name] for name in expected}
    assert_close(found, dict(expected), 1e-9)


def test_frozen_features_have_no_live_batch_norm_and_no_hooks_of_other_modifiers():
    torch.manual_seed(0)
    features, width = build_features("resnet18", (3, 32, 32), weights="random", freeze_bn=False)
    network = MIRO().network(MixStyle(probability=1.0).network(Network(features, nn.Linear(width, 4)))).train()
    assert {name.partition(".")[0] for name in live_buffers(network)} == {"features"}
    assert not any(module._forward_hooks for module in network.miro.frozen.modules())
    x = torch.randn(2, 3, 32, 32)
    maps = [network.miro._run(tuple(network.miro.frozen), x)[1][-1] for _ in range(2)]
    assert torch.equal(*maps)


def test_frozen_features_are_not_trained_weights():
    network = build("mnist_cnn", (2, 28, 28), MIRO())
    trained = {name for name, _ in network.named_parameters() if name.startswith("miro.")}
    assert trained == {f"miro.variances.{index}" for index in range(4)}


@pytest.mark.parametrize("algorithm", [ERM(), POGM()], ids=["ERM", "POGM"])
def test_batched_trials_equal_single_trials(algorithm):
    assert_batched_equals_single(algorithm, MIRO())


def test_domains_by_vmap_equal_a_loop():
    assert_domains_by_vmap_equal_a_loop(POGM(), MIRO())


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(ERM(), MIRO(), SWAD())


def test_learner_and_other_heads_raise():
    with pytest.raises(UsageError, match="the parts that MIRO adds"):
        Learner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).double(), ERM(), head="1", modifiers=[MIRO()]).step(
            batches()[0]
        )
    with pytest.raises(UsageError, match="head is made of linear layers"):
        MIRO().network(Network(nn.Linear(6, 5), nn.Identity()))


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu():
    assert_captured_equals_the_host(ERM(), MIRO())
