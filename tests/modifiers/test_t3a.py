"""T3A: prototypes that test images adjust."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from promises import accuracy, assert_batched_equals_single, modified, session
from support import assert_close, toy, trial
from torch import nn

from pogm import ERM, POGM, Learner
from pogm._system.errors import UsageError
from pogm.algorithms.arm import ARM
from pogm.algorithms.mtl import MTL
from pogm.modifiers.t3a import T3A
from pogm.testing import INPUTS, MODIFIER_CHECKS


def made(seed=0):
    """Return a model with larger weights of the head, so that predictions differ, and test images in batches."""
    state, problem = toy(ERM())
    head = 3 * torch.randn(state.params["head.weight"].shape, generator=torch.Generator().manual_seed(seed)).double()
    model = problem.model({**state.params, "head.weight": head}, state)
    generator = torch.Generator().manual_seed(seed)
    return model, [torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) for n in (7, 7, 3)]


def naive(model, batches, most):
    """Keep all supports in lists, sort them for each class, and compare with prototypes in a loop."""
    weight, bias = model.params["head.weight"], model.params["head.bias"]
    seen, logits = [], []

    def add(z):
        p = F.linear(z, weight, bias).softmax(-1)
        seen.append((p.argmax().item(), -(p * p.log()).sum().item(), z / z.norm()))

    for row in weight:
        add(row)
    for batch in batches:
        features = model.features(batch)
        for z in features:
            add(z)
        prototypes = []
        for c in range(len(weight)):
            chosen = sorted((found[1:] for found in seen if found[0] == c), key=lambda found: found[0])
            total = sum((z for _, z in chosen[: most or len(chosen)]), torch.zeros_like(weight[0]))
            prototypes.append(total / total.norm() if chosen else total)
        logits.append(features @ torch.stack(prototypes).T)
    return logits


@pytest.mark.parametrize("most", [1, 2, 5, 100, 0])
def test_predictions_equal_a_naive_computation(most):
    model, batches = made()
    predict = T3A(supports=most).predictor(model, model)
    assert_close([predict(x) for x in batches], naive(model, batches, most), 1e-9)


def test_without_test_images_the_prototypes_are_the_directions_of_the_classifier():
    model, _ = made()
    model.params["head.weight"] = 4 * torch.eye(*model.params["head.weight"].shape, dtype=torch.float64)
    predict = T3A().predictor(model, model)
    expected = F.normalize(model.params["head.weight"], dim=1)
    assert_close(predict.prototypes(), expected)


def test_supports_start_anew_for_each_domain():
    model, (x, *_) = made()
    predict = T3A().predictor(model, model)
    first = predict(x)
    predict(x + 1)
    assert not torch.equal(predict(x), first), "what was seen changes what follows"
    assert_close(T3A().predictor(model, model)(x), first, 0.0)


def test_accuracy_is_above_chance_and_training_is_that_of_the_algorithm():
    """Chance is 10% on the unseen domain."""
    assert accuracy(ERM(), T3A()) > 0.5
    plain, adapted = (session(modified(POGM(), *with_, network="mlp")) for with_ in ((), (T3A(),)))
    for one in (plain, adapted):
        one.step()
    assert_close(adapted.train_state.state.params, plain.train_state.state.params, 0.0)
    assert adapted.accuracies() != plain.accuracies()


@pytest.mark.parametrize("check", MODIFIER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(T3A)


def test_batched_trials_predict_like_single_trials():
    assert_batched_equals_single(ERM(), T3A(), evaluated=True, network="mlp")


@pytest.mark.parametrize("algorithm", [ARM(), MTL()])
def test_algorithms_that_do_not_predict_with_a_linear_head_are_refused(algorithm):
    with pytest.raises(UsageError, match=r"linear head .* for T3A; found .*\. Choose another algorithm"):
        session(modified(algorithm, T3A(), network="mlp"))


def test_nonlinear_classifier_is_refused():
    one = trial(ERM(), modifiers=(T3A(),))
    training = dataclasses.replace(one.training, nonlinear_classifier=True)
    with pytest.raises(UsageError, match="nonlinear_classifier=false"):
        session(dataclasses.replace(one, training=training))


def test_learner_refuses_modifiers_that_change_only_predictions():
    with pytest.raises(UsageError, match=r"found T3A\. Train it as a trial"):
        Learner(nn.Linear(3, 2), ERM(), modifiers=[T3A()])
