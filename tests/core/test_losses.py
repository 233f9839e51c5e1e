"""Losses by name: values, targets that fit, and algorithms that work with them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import B, C, K, assert_close, batches, toy
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.core.batch import Batch
from pogm.core.compilation import compiling
from pogm.core.losses import CROSS_ENTROPY, LOSSES, SampleLoss, find_loss
from pogm.modifiers import all_modifiers

NEED_CLASSES = {"ADRMX", "CAD", "CDANN", "CondCAD", "MADG", "RSC", "SagNet", "SelfReg", "T3A", "TENT"}
OUTPUTS, NUMBERS, INDICES = torch.zeros(B, C), torch.zeros(B, C), torch.zeros(B, dtype=torch.long)


def numbers(seed=0):
    """Return a minibatch with targets that are C numbers per sample."""
    (batch,) = batches(seed=seed)
    return Batch(batch.x, torch.sin(batch.x[..., :C]))


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_losses_of_numbers_are_means_over_the_outputs_of_a_sample(name):
    torch.manual_seed(0)
    reference = getattr(F, f"{name}_loss")
    outputs, targets = torch.randn(K, B, C), torch.randn(K, B, C)
    expected = torch.stack([torch.stack([reference(outputs[k, b], targets[k, b]) for b in range(B)]) for k in range(K)])
    torch.testing.assert_close(LOSSES[name](outputs, targets), expected)


def test_one_output_per_sample_takes_targets_without_an_axis_for_it():
    outputs, targets = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[0.0, 5.0]])
    assert LOSSES["mse"](outputs, targets).tolist() == [[1.0, 9.0]]
    LOSSES["mse"].check(outputs[0], targets[0])


def test_binary_cross_entropy_is_the_mean_over_labels():
    logits, labels = torch.tensor([[[0.0, 100.0]]]), torch.tensor([[[1, 0]]])
    assert LOSSES["bce"](logits, labels).item() == pytest.approx((torch.tensor(2.0).log().item() + 100) / 2)


def test_cross_entropy_of_segmentation_is_the_mean_over_pixels_that_count():
    torch.manual_seed(0)
    outputs, targets = torch.randn(K, B, C, 5, 3), torch.randint(C, (K, B, 5, 3))
    targets[:, :, 0] = -100
    expected = [[F.cross_entropy(outputs[k, b][None], targets[k, b][None]) for b in range(B)] for k in range(K)]
    torch.testing.assert_close(CROSS_ENTROPY(outputs, targets), torch.tensor(expected))
    CROSS_ENTROPY.check(outputs[0], targets[0])
    CROSS_ENTROPY.check_values(outputs[0], targets[0])


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_same_under_vmap(name):
    torch.manual_seed(0)
    outputs, loss = torch.randn(K, B, C), LOSSES[name]
    targets = torch.rand(K, B, C).softmax(-1)
    expected = loss(outputs, targets)
    torch.testing.assert_close(vmap(lambda o, t: loss(o[None], t[None])[0])(outputs, targets), expected)


@pytest.mark.parametrize("name", ["cross_entropy", "huber"])
def test_gradient_with_respect_to_the_outputs_equals_autograd(name):
    torch.manual_seed(0)
    outputs, targets = torch.randn(K, B, C, requires_grad=True), torch.rand(K, B, C).softmax(-1)
    (expected,) = torch.autograd.grad(LOSSES[name](outputs, targets).sum(), outputs)
    torch.testing.assert_close(LOSSES[name].output_gradient(outputs, targets), expected)


def test_ignored_samples_have_no_loss_and_no_gradient():
    torch.manual_seed(0)
    outputs, targets = torch.randn(K, B, C, requires_grad=True), torch.randint(C, (K, B))
    targets[0, 0] = -100
    losses = CROSS_ENTROPY(outputs, targets)
    assert losses[0, 0] == 0
    (expected,) = torch.autograd.grad(losses.sum(), outputs)
    torch.testing.assert_close(CROSS_ENTROPY.output_gradient(outputs, targets), expected)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "found"),
    [
        ("cross_entropy", torch.zeros(B, 1), torch.zeros(B, 1), r"found outputs of shape \[8, 1\].*'mse'"),
        ("cross_entropy", OUTPUTS, torch.zeros(B), r"found float32 targets of shape \[8\].*'huber'"),
        (
            "cross_entropy",
            OUTPUTS,
            torch.zeros(B, C, dtype=torch.int32),
            r"found int32 targets of shape \[8, 4\].*'bce'",
        ),
        (
            "cross_entropy",
            OUTPUTS,
            torch.zeros(3, dtype=torch.long),
            r"indices \[8\].*found int64 targets of shape \[3\]",
        ),
        ("bce", OUTPUTS, INDICES, r"shape \[8, 4\].*found int64 targets of shape \[8\].*'cross_entropy'"),
        ("mse", torch.zeros(B, 1), torch.zeros(B, 2), r"shape \[8, 1\].*found float32 targets of shape \[8, 2\]"),
        ("l1", torch.zeros(B), torch.zeros(B, 1), r"shape \[8\].*found float32 targets of shape \[8, 1\]"),
    ],
)
def test_targets_of_a_wrong_shape_or_type_are_refused(name, outputs, targets, found):
    with pytest.raises(UsageError, match=f"(?s)Expected .*{found}"):
        LOSSES[name].check(outputs, targets)


@pytest.mark.parametrize(
    ("name", "targets", "found"),
    [
        ("cross_entropy", INDICES + C, "from 0 to 3 .* found indices from 4 to 4"),
        ("cross_entropy", INDICES - 1, "found indices from -1 to -1"),
        ("cross_entropy", NUMBERS + 1, "sums from 4 to 4.*'bce'"),
        ("bce", NUMBERS + 3, "found values from 3 to 3"),
        ("mse", NUMBERS / 0, "found NaN or infinity"),
    ],
)
def test_targets_with_wrong_values_are_refused(name, targets, found):
    LOSSES[name].check(OUTPUTS, targets)
    with pytest.raises(UsageError, match=f"Expected .*{found}"):
        LOSSES[name].check_values(OUTPUTS, targets)


def test_integer_targets_of_any_type_are_converted():
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        assert CROSS_ENTROPY.convert_targets(torch.ones(3, dtype=dtype)).dtype == torch.int64
        assert LOSSES["mse"].convert_targets(torch.ones(3, dtype=dtype)).dtype == torch.float32


def test_function_must_return_one_value_per_sample():
    def mean(outputs, targets):
        return (outputs - targets).square().mean()

    loss = find_loss(mean)
    with pytest.raises(UsageError, match=r"shape \[8\], from the loss mean; found a tensor of shape \[\].*reduction"):
        loss.check(OUTPUTS, NUMBERS)
    find_loss(lambda outputs, targets: (outputs - targets).square().sum(1)).check(OUTPUTS, NUMBERS)


def test_unknown_loss_is_refused():
    with pytest.raises(UsageError, match=r"a loss out of bce, cross_entropy, .*'huber'\?"):
        find_loss("hubert")
    with pytest.raises(UsageError, match=r"a function of outputs and targets; found 3"):
        find_loss(3)


def test_methods_that_need_classes_are_refused_for_other_losses():
    every = {**all_algorithms(), **all_modifiers()}
    assert {name for name, method in every.items() if method.needs_classes} == NEED_CLASSES
    for name in NEED_CLASSES:
        CROSS_ENTROPY.check_method([every[name]()])
        with pytest.raises(UsageError, match=f"for {name}, which uses class labels; found the loss mse"):
            LOSSES["mse"].check_method([every[name]()])


def test_the_page_of_tables_names_all_methods_that_a_regression_refuses():
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    sentence = page.partition("Methods that use class labels are refused")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == NEED_CLASSES


@pytest.mark.parametrize("name", sorted(set(all_algorithms()) - NEED_CLASSES))
def test_every_other_algorithm_learns_numbers(name):
    """30 steps decrease the mean squared error by a tenth or more (most methods by more than half)."""
    if name == "ARM":  # its context network needs images; its risk is computed in the same way
        pytest.skip("needs images")
    algorithm = all_algorithms()[name]()
    state, problem = toy(algorithm, lr=0.05)
    problem = replace(problem, loss=LOSSES["mse"])
    batch = numbers()

    def risk(state):
        return problem.model(state.params, state).risks(batch).mean().item()

    before = risk(state)
    for _ in range(30):
        with torch.no_grad():
            state, metrics = algorithm.step(state, [batch] * algorithm.minibatches, problem)
    assert metrics["loss"].isfinite()
    assert risk(state) < 0.9 * before


def test_squared_error_of_one_hot_targets_gives_the_brier_score():
    """The same model has another risk with another loss."""
    (batch,) = batches()
    state, problem = toy(all_algorithms()["ERM"]())
    model = replace(problem, loss=LOSSES["mse"]).model(state.params, state)
    one_hot = F.one_hot(batch.y, C).double()
    outputs = model(batch.x.flatten(0, 1)).view(K, B, C)
    assert_close(model.risks(Batch(batch.x, one_hot)), (outputs - one_hot).square().mean((1, 2)))


def test_compiled_risks_follow_the_loss():
    state, problem = toy(all_algorithms()["ERM"]())
    batch = numbers()
    losses = [LOSSES["mse"], LOSSES["l1"], SampleLoss("cube", lambda o, t: (o - t).abs().pow(3).mean(1))]
    for loss in losses:
        model = replace(problem, loss=loss).model(state.params, state)
        expected = model.risks(batch)
        with compiling(True):
            torch.testing.assert_close(model.risks(batch), expected)
