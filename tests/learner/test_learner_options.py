"""Learner: losses, optimizers, schedules, precision and compilation."""

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from support import INPUTS, B, C, K, needs_gpu
from torch import nn

from pogm import ERM, IRM, POGM, RDM, RSC, Batch, Fishr, Learner, Mixup
from pogm._system.errors import UsageError
from pogm.core.optimizers import Adam
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class LastWeights(Modifier):
    """A modifier of a user that chooses the final weights."""

    def final(self, memory, params):
        return params, torch.tensor(0)


def mlp(outputs=C, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, outputs))


def regression(seed=0, size=B, outputs=1):
    """Return inputs of every domain and a nonlinear function of them."""
    torch.manual_seed(seed)
    x = torch.randn(K, size, INPUTS)
    return Batch(x, torch.sin(x[..., :outputs]) + 0.1 * torch.arange(K).view(-1, 1, 1))


def reference_steps(module, optimizer, loss, steps=6, clip=None, data=regression, schedule=None):
    """Train by torch: the mean over domains of the mean loss."""
    base = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * (1 if schedule is None else schedule(step))
        batch = data(step)
        optimizer.zero_grad()
        loss(module(batch.x.flatten(0, 1)), batch.y.flatten(0, 1)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()


def learner_steps(learner, steps=6, data=regression):
    return [learner.step(data(step)) for step in range(steps)]


def assert_same_weights(left, right, **tolerance):
    for mine, theirs in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


@pytest.mark.parametrize(
    ("loss", "reference"),
    [("mse", F.mse_loss), ("l1", F.l1_loss), ("huber", F.huber_loss)],
    ids=["mse", "l1", "huber"],
)
def test_regression_equals_a_training_loop_with_torch(loss, reference):
    module, other = mlp(1), mlp(1)
    learner_steps(Learner(module, ERM(), loss=loss, lr=0.01))
    reference_steps(other, torch.optim.Adam(other.parameters(), lr=0.01), reference)
    assert_same_weights(module, other)


def test_several_labels_per_sample_equal_a_training_loop_with_torch():
    def labels(seed):
        batch = regression(seed, outputs=C)
        return Batch(batch.x, (batch.y > 0).long())

    module, other = mlp(), mlp()
    learner_steps(Learner(module, ERM(), loss="bce", lr=0.01), data=labels)

    def loss(outputs, y):
        return F.binary_cross_entropy_with_logits(outputs, y.float())

    reference_steps(other, torch.optim.Adam(other.parameters(), lr=0.01), loss, data=labels)
    assert_same_weights(module, other)


def test_segmentation_with_a_convolution_learns():
    """One pixel-wise layer can copy the sign of its input."""
    torch.manual_seed(0)
    x = torch.randn(K, B, 1, 4, 4)
    batch = Batch(x, (x[:, :, 0] > 0).long())
    module = nn.Conv2d(1, 2, 1)
    learner = Learner(module, POGM(), lr=0.1)
    losses = [learner.step(batch)["loss"].item() for _ in range(50)]
    assert losses[-1] < losses[0] / 3


def test_function_as_a_loss_equals_the_loss_with_that_name():
    named, own = mlp(1), mlp(1)
    learner_steps(Learner(named, POGM(), loss="mse"))
    learner_steps(Learner(own, POGM(), loss=lambda outputs, y: (outputs - y).square().mean(1)))
    assert_same_weights(named, own, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", [IRM(penalty=0.1), Fishr(penalty_anneal_iters=0), RDM()], ids=str)
def test_methods_with_derivatives_of_the_loss_learn_regression(algorithm):
    module = mlp(1)
    learner = Learner(module, algorithm, loss="mse", head="3", lr=0.01)
    first, *_, last = [learner.step(regression()).get("nll").item() for _ in range(60)]
    assert last < first / 2


def test_mixup_mixes_numbers():
    metrics = learner_steps(Learner(mlp(1), ERM(), loss="mse", modifiers=[Mixup()], lr=0.01), 30)
    assert metrics[-1]["loss"] < metrics[0]["loss"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {"weight_decay": 0.1}),
        ("AdamW", {}),
        ("SGD", {"momentum": 0.9}),
    ],
)
def test_optimizers_equal_those_of_torch(name, options):
    module, other = mlp(1), mlp(1)
    learner_steps(Learner(module, ERM(), loss="mse", lr=0.05, optimizer=name.lower(), **options))
    reference_steps(other, getattr(torch.optim, name)(other.parameters(), 0.05, **options), F.mse_loss)
    assert_same_weights(module, other)


def test_groups_clipping_and_schedule_equal_torch():
    module, other = mlp(1), mlp(1)
    groups = [{"params": module[3].parameters(), "lr": 0.1, "weight_decay": 0.0}]
    options = {"optimizer": "sgd", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5}
    learner = Learner(module, ERM(), loss="mse", groups=groups, schedule=lambda step: 0.5**step, **options)
    learner_steps(learner)
    theirs = torch.optim.SGD(
        [{"params": other[0].parameters()}, {"params": other[3].parameters(), "lr": 0.1, "weight_decay": 0.0}],
        lr=0.01,
        weight_decay=0.1,
    )
    reference_steps(other, theirs, F.mse_loss, clip=0.5, schedule=lambda step: 0.5**step)
    assert_same_weights(module, other)


def test_cosine_schedule_ends_at_zero():
    module = mlp(1)
    learner = Learner(module, ERM(), loss="mse", optimizer="sgd", lr=1.0, schedule="cosine", steps=4)
    sizes, seen = [], nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    for step in range(6):
        learner.step(regression(step))
        now = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        sizes.append((now - seen).norm().item())
        seen = now
    assert all(size > 0 for size in sizes[:4])
    assert sizes[4:] == [0, 0]
    assert learner._schedule(2) == pytest.approx((1 + math.cos(math.pi / 2)) / 2)


def test_pogm_with_no_radius_equals_erm_with_any_optimizer():
    """Corollary 1 holds for AdamW with a schedule, groups and clipping as well."""
    pogm, erm = mlp(1), mlp(1)
    for module, algorithm in ((pogm, POGM(kappa=0.0)), (erm, ERM())):
        groups = [{"params": module[3].parameters(), "lr": 0.1}]
        options = {"optimizer": "adamw", "clip_norm": 0.1, "schedule": "cosine", "steps": 10, "lr": 0.01}
        learner_steps(Learner(module, algorithm, loss="mse", groups=groups, **options))
    assert_same_weights(pogm, erm, rtol=1e-4, atol=1e-5)


def test_bf16_computes_in_bfloat16_and_keeps_float32_weights():
    exact, mixed = mlp(1), mlp(1)
    seen = []
    mixed[1].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0].dtype))
    learner_steps(Learner(exact, POGM(), loss="mse"))
    learner_steps(Learner(mixed, POGM(), loss="mse", precision="bf16"))
    assert torch.bfloat16 in seen
    assert {leaf.dtype for leaf in mixed.parameters()} == {torch.float32}
    assert_same_weights(exact, mixed, rtol=0.1, atol=0.02)
    assert not torch.equal(exact[0].weight, mixed[0].weight)


def test_compiled_learner_gives_the_same_weights_up_to_rounding():
    plain, compiled, algorithm = mlp(1), mlp(1), ERM()  # of all methods the least code to compile
    for module, compile in ((plain, False), (compiled, True)):
        options = {"optimizer": "adamw", "schedule": "cosine", "steps": 9}
        learner_steps(Learner(module, algorithm, loss="mse", compile=compile, **options))
    assert_same_weights(plain, compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2), Fishr(penalty_anneal_iters=0)], ids=str)
def test_captured_learner_gives_the_same_weights_up_to_rounding(algorithm):
    plain, captured = mlp(1).cuda(), mlp(1).cuda()
    for module, compile in ((plain, False), (captured, True)):
        options = {"optimizer": "adamw", "schedule": "cosine", "steps": 9, "head": "3"}
        learner = Learner(module, algorithm, loss="mse", compile=compile, **options)
        for step in range(8):
            size = B if step < 6 else 5  # the last minibatches have another shape
            learner.step([(x, y) for x, y in zip(*regression(step, size), strict=True)])
    assert len(learner._graphed.graphs) == 2
    assert_same_weights(plain, captured, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "huba"}, "a loss out of .*found 'huba'. Did you mean 'huber'"),
        ({"optimizer": "adamv"}, "an optimizer out of adam, adamw, sgd; found 'adamv'"),
        ({"optimizer": torch.optim.Adam}, "the name of an optimizer .*found type.*pogm.backward"),
        ({"optimizer": Adam(0.1), "lr": 0.1}, "without them; found Adam"),
        ({"momentum": 0.9}, "optimizer='sgd' for momentum; found None"),
        ({"lr": -1.0}, "lr to be a number of at least 0; found -1.0"),
        ({"schedule": "cosin"}, "a schedule out of cosine; found 'cosin'"),
        ({"schedule": "cosine"}, "number of steps for schedule='cosine'; found None"),
        ({"steps": 3}, "steps only with schedule='cosine'; found steps=3"),
        ({"precision": "fp16"}, "a precision out of bf16; found 'fp16'"),
        ({"loss": "mse", "algorithm": RSC(), "head": "3"}, "for RSC, which uses class labels; found the loss mse"),
        ({"algorithm": POGM}, r"a subclass of Algorithm, such as POGM\(\); found the class POGM"),
        ({"modifiers": [Mixup]}, r"a subclass of Modifier, such as Mixup\(\); found the class Mixup"),
        ({"modifiers": ["Mixup"]}, "a subclass of Modifier, .*; found str"),
        ({"modifiers": [LastWeights()]}, "choose no final weights, .*; found LastWeights"),
        ({"groups": [{"params": [], "lr": -1.0}]}, "lr to be a number of at least 0; found -1.0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    algorithm = options.pop("algorithm", ERM())
    with pytest.raises(UsageError, match=f"Expected .*{message}"):
        Learner(mlp(), algorithm, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": [{"params": [nn.Parameter(torch.zeros(3))]}]}, "found 1 that it does not have"),
        ({"groups": [{"params": [], "betas": 1}]}, "keys params, lr and weight_decay; found 'params', 'betas'"),
        ({"schedule": lambda step: -1.0}, "a factor of at least 0 from the schedule; found -1.0 for step 0"),
    ],
    ids=["params", "keys", "schedule"],
)
def test_options_that_are_refused_in_the_first_step(options, message):
    with pytest.raises(UsageError, match=f"Expected .*{message}"):
        Learner(mlp(1), ERM(), loss="mse", **options).step(regression())


def test_several_optimizers_of_an_algorithm_cannot_be_replaced():
    from pogm import DANN

    with pytest.raises(UsageError, match="found DANN, which has several"):
        Learner(mlp(), DANN(), optimizer="sgd")


def test_loss_decreases_with_every_named_optimizer():
    for name in ("adam", "adamw", "sgd"):
        learner = Learner(mlp(1), POGM(), loss="mse", optimizer=name, lr=0.02)
        losses = [learner.step(regression())["loss"].item() for _ in range(10)]
        assert all(after < before for before, after in pairwise(losses))
