"""TENT: entropy minimisation at test time."""

import pytest
import torch
from promises import accuracy, assert_batched_equals_single, modified, session
from support import assert_close, toy
from torch import nn

from pogm import ERM, ITTA, POGM, Learner
from pogm._system.errors import UsageError
from pogm.models.layers import freeze_batch_norm
from pogm.modifiers.t3a import T3A
from pogm.modifiers.tent import TENT, affine_names
from pogm.testing import INPUTS, MODIFIER_CHECKS

NORM = "features.1"


def made(frozen=False):
    """Return a model with batch norm, statistics that are not those of the images, and test images in batches."""
    state, problem = toy(ERM(), batch_norm=True)
    if frozen:
        freeze_batch_norm(problem.network)
    problem.network.eval()
    shift = {f"{NORM}.running_mean": torch.full_like(state.buffers[f"{NORM}.running_mean"], 0.3)}
    model = problem.model(state.params, state._replace(buffers=state.buffers | shift))
    generator = torch.Generator().manual_seed(0)
    return model, [torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) for n in (7, 7, 3, 1)]


def naive(model, batches, lr, uses_batch):
    """Compute the network by hand, with the Adam of torch; predict before each step."""
    names = [f"{NORM}.weight", f"{NORM}.bias"]
    affine = [model.params[name].clone().requires_grad_() for name in names]
    adam = torch.optim.Adam(affine, lr=lr)
    logits = []
    for x in batches:
        h = x @ model.params["features.0.weight"].T + model.params["features.0.bias"]
        stored = model.buffers[f"{NORM}.running_mean"], model.buffers[f"{NORM}.running_var"]
        mean, variance = (h.mean(0), h.var(0, correction=0)) if uses_batch and len(x) > 1 else stored
        h = torch.tanh((h - mean) / (variance + 1e-5).sqrt() * affine[0] + affine[1])
        found = h @ model.params["head.weight"].T + model.params["head.bias"]
        p = found.softmax(-1)
        adam.zero_grad()
        (-(p * p.log()).sum(-1)).mean().backward()
        adam.step()
        logits.append(found.detach())
    return logits


@pytest.mark.parametrize("frozen", [False, True])
def test_predictions_equal_a_naive_computation(frozen):
    """Frozen batch norm keeps its statistics; other batch norm uses those of the test batch."""
    model, batches = made(frozen)
    expected = naive(model, batches, 0.05, uses_batch=not frozen)
    before = dict(model.params), {name: leaf.clone() for name, leaf in model.buffers.items()}
    with torch.no_grad():
        predict = TENT(adaptation_lr=0.05).predictor(model, model)
        found = [predict(x) for x in batches]
    assert_close(found, expected, 1e-8)
    assert_close((dict(model.params), model.buffers), before, 0.0)
    assert all(not layer.training for layer in model.network.modules()), "the modes are restored"


def test_steps_decrease_the_entropy_of_repeated_images():
    model, (x, *_) = made()
    with torch.no_grad():
        predict = TENT(adaptation_lr=0.05).predictor(model, model)
        logits = [predict(x) for _ in range(10)]
    entropies = [torch.distributions.Categorical(logits=found).entropy().mean() for found in logits]
    assert entropies == sorted(entropies, reverse=True)


def test_only_scales_and_shifts_of_layers_that_predict_are_adapted():
    parts = nn.ModuleDict(
        {
            "features": nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm(3)),
            "head": nn.BatchNorm1d(4, affine=False),
            "projection": nn.BatchNorm1d(4),
        }
    )
    assert affine_names(parts) == [f"features.{i}.{name}" for i in (1, 2) for name in ("weight", "bias")]


def test_scales_start_anew_for_each_domain():
    model, (x, *_) = made()
    with torch.no_grad():
        predict = TENT(adaptation_lr=0.05).predictor(model, model)
        first = predict(x)
        assert not torch.equal(predict(x), first), "what was seen changes what follows"
        assert_close(TENT(adaptation_lr=0.05).predictor(model, model)(x), first, 0.0)


def test_accuracy_is_above_chance_and_training_is_that_of_the_algorithm():
    """Chance is 10% on the unseen domain."""
    assert accuracy(ERM(), TENT(), network="small_cnn", lr=0.01) > 0.5
    plain, adapted = (session(modified(POGM(), *with_)) for with_ in ((), (TENT(adaptation_lr=0.1),)))
    for one in (plain, adapted):
        one.step()
    assert_close(adapted.train_state.state.params, plain.train_state.state.params, 0.0)
    assert adapted.accuracies() != plain.accuracies()


@pytest.mark.parametrize("check", MODIFIER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(TENT)


def test_batched_trials_predict_like_single_trials():
    assert_batched_equals_single(ERM(), TENT(adaptation_lr=0.1), evaluated=True)


def test_network_without_normalization_is_refused():
    with pytest.raises(UsageError, match=r"normalization layers .* for TENT; found none\. Choose a network"):
        session(modified(ERM(), TENT(), network="mlp"))


@pytest.mark.parametrize("other", [T3A(), ITTA(), TENT()])
def test_two_modifiers_that_adapt_at_test_time_are_refused(other):
    with pytest.raises(UsageError, match=rf"found TENT and {type(other).__name__}\. Leave one out"):
        session(modified(ERM(), TENT(), other))


def test_learner_refuses_it():
    with pytest.raises(UsageError, match=r"found TENT\. Train it as a trial"):
        Learner(nn.Linear(3, 2), ERM(), modifiers=[TENT()])
