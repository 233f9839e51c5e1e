"""Evaluation of every domain and split, and the validation loss."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from image_folders import write_folder
from support import trial

from pogm import ARM, ERM, T3A, TENT
from pogm.benchmark.plan.trial import Trial
from pogm.core import random
from pogm.core.state import Purpose
from pogm.data.datasets.folder import Folder
from pogm.engine import evaluator
from pogm.engine.session import Engine, Session


@pytest.fixture
def run(tmp_path):
    """A trial on images of three domains, and the data folder."""
    dataset = Folder.from_path(write_folder(tmp_path / "sites", images=8))
    training = replace(dataset.training, network="mlp", weights="random", image_size=16, batch_size=4, lr=1e-3)
    return Trial(dataset, ERM(), (1,), training, steps=3, evaluate_every=2), tmp_path


def accuracies(run, data, **changes):
    changed = replace(run, training=replace(run.training, **changes))
    session = Session([changed.task(data)], Engine())
    for _ in range(30):
        session.step()
    return session, session.accuracies()[0]


def expected(session, transform):
    """Return the accuracies on each segment of images that were transformed by ``transform``."""
    config, state, indices = session.config, session.train_state.state, session.sample_indices
    images, sizes = config.table.inputs.inputs[indices.evaluate], config.table.sizes[indices.evaluate]
    logits = config.problem.model(state.params, state)(transform(config, state, images, sizes))
    right = (logits.argmax(1) == config.table.labels[indices.evaluate]).double()
    return [part.mean().item() for part in right.split(session.segments)]


def to_inputs(config, state, images, sizes):
    return config.transform.to_inputs(images, torch.float32)


def to_augmented_inputs(config, state, images, sizes):
    keys = random.split(state.random_key(Purpose.EVALUATION, state.step), len(images))
    return config.transform.to_augmented_inputs(images, sizes, keys, torch.float32)


def test_training_domains_are_evaluated_on_augmented_images_by_default(run):
    session, found = accuracies(*run)
    as_plain, as_augmented = expected(session, to_inputs), expected(session, to_augmented_inputs)
    assert found[2:4] == pytest.approx(as_plain[2:4]), "the test domain"
    assert found[:2] + found[4:] == pytest.approx(as_augmented[:2] + as_augmented[4:])


def test_training_domains_are_evaluated_on_plain_images_without_augmentation(run):
    for changes in ({"eval_augment": False}, {"data_augmentation": False}):
        session, found = accuracies(*run, **changes)
        assert found == pytest.approx(expected(session, to_inputs))


def loss_by_hand(session, trained):
    """Return the mean over training domains of the cross-entropy on plain images of the *out* split."""
    config, state, indices = session.config, session.train_state.state, session.sample_indices
    model, losses = config.problem.model(state.params, state), []
    for number, part in enumerate(indices.evaluate.split(session.segments)[1::2]):
        if number in trained:
            logits = model(config.transform.to_inputs(config.table.inputs.inputs[part], torch.float32))
            losses.append(torch.nn.functional.cross_entropy(logits, config.table.labels[part]))
    return torch.stack(losses).mean().item()


def test_validation_loss_uses_training_domains_and_plain_images(run, monkeypatch):
    session, _ = accuracies(*run)  # with augmentation in training and evaluation
    approx_loss = pytest.approx(loss_by_hand(session, (0, 2)), rel=1e-5)
    for pixels in (2**21, 5 * 16 * 16):
        monkeypatch.setattr(evaluator, "PIXELS", {"cpu": pixels})
        arguments = session.config, session.train_state.state, session.sample_indices, session.segments
        assert evaluator.TrialEvaluator(*arguments).validation_loss().item() == approx_loss


def test_accuracies_do_not_depend_on_the_size_of_passes_or_on_batched_trials(run, monkeypatch):
    """Also with augmentation, which does not depend on the other images of a pass."""
    trial, data = run
    session, expected_accuracies = accuracies(trial, data)
    monkeypatch.setattr(evaluator, "PIXELS", {"cpu": 5 * 16 * 16})
    assert session.accuracies()[0] == pytest.approx(expected_accuracies)
    trials = [trial, replace(trial, test_domains=(0,))]
    batched = Session([t.task(data) for t in trials], Engine())
    alone = [Session([t.task(data)], Engine()) for t in trials]
    for _ in range(5):
        batched.step()
        for one in alone:
            one.step()
    for row, one in enumerate(alone):
        assert batched.accuracies()[row] == pytest.approx(one.accuracies()[0])


@pytest.mark.parametrize("evaluation", ["selection", "validation"])
@pytest.mark.parametrize("pixels", [2**21, 5 * 16 * 16])
def test_part_of_the_segments_has_the_accuracies_of_an_evaluation_of_all(run, monkeypatch, evaluation, pixels):
    """Also with augmentation, which depends on the position of an image among all images."""
    monkeypatch.setattr(evaluator, "PIXELS", {"cpu": pixels})
    trial, data = run
    _, whole = accuracies(trial, data)
    _, found = accuracies(replace(trial, evaluation=evaluation), data)
    unused = (0, 4) if evaluation == "selection" else (0, 2, 4)  # domain 1 is held out
    assert [number for number, value in enumerate(found) if math.isnan(value)] == list(unused)
    assert [value for value in found if value == value] == [v for n, v in enumerate(whole) if n not in unused]


@pytest.mark.parametrize("evaluation", ["selection", "validation"])
@pytest.mark.parametrize("parts", [{"modifiers": (T3A(),)}, {"algorithm": ARM()}])
def test_methods_that_predict_batches_of_one_segment_do_not_see_which_others_are_evaluated(run, evaluation, parts):
    trial, data = run
    trial = replace(trial, **parts)
    _, whole = accuracies(trial, data)
    _, found = accuracies(replace(trial, evaluation=evaluation), data)
    evaluated = [number for number, value in enumerate(found) if not math.isnan(value)]
    assert evaluated == ([1, 2, 3, 5] if evaluation == "selection" else [1, 3, 5])
    assert [found[number] for number in evaluated] == [whole[number] for number in evaluated]


def test_a_run_on_all_domains_evaluates_validation_images_only(run):
    trial, data = run
    _, found = accuracies(replace(trial, test_domains=(), evaluation="selection"), data)
    assert [math.isnan(value) for value in found] == [True, False] * 3


@pytest.mark.parametrize("strategy", ["apart", "vmap"])
def test_trials_of_a_batch_omit_the_training_images_of_their_own_training_domains(run, strategy):
    trial, data = run
    trials = [replace(trial, test_domains=(held_out,), evaluation="selection") for held_out in (1, 0)]
    session = Session([one.task(data) for one in trials], Engine(trials=strategy))
    for _ in range(5):
        session.step()
    for one, found in zip(trials, session.accuracies(), strict=True):
        whole = Session([replace(one, evaluation="all").task(data)], Engine())
        for _ in range(5):
            whole.step()
        expected_accuracies = [
            math.nan if number in [2 * i for i in one.train_domains] else value
            for number, value in enumerate(whole.accuracies()[0])
        ]
        assert found == pytest.approx(expected_accuracies, nan_ok=True)


@pytest.mark.parametrize("modifier", [T3A(), TENT(adaptation_lr=0.1)])
def test_adaptation_starts_again_for_each_domain_and_split(modifier):
    """Each segment has the accuracy that it has alone, so nothing is kept from the segments before it."""
    run = trial(ERM(), modifiers=(modifier,))
    run = replace(run, training=replace(run.training, network="small_cnn"))
    session = Session([run.task(None)], Engine())
    for _ in range(5):
        session.step()
    tensors = session.predicting_tensors()
    alone = [session.predict(tensors, [segment])[0] for segment in range(len(session.segments))]
    expected = [(logits.argmax(1) == labels).double().mean().item() for logits, labels in alone]
    assert session.accuracies()[0] == pytest.approx(expected)


def test_training_images_are_augmented_unless_switched_off(run):
    trial, data = run
    with_, without = (accuracies(trial, data, data_augmentation=on)[0].train_state.state.params for on in (True, False))
    assert any(not torch.equal(with_[name], without[name]) for name in with_)


def test_small_gpu_evaluates_fewer_images_per_pass(monkeypatch):
    """The network for MNIST needs 25 GB for 2²⁵ pixels."""
    for gigabytes, pixels in ((140, 2**25), (8, 2**22)):
        properties = SimpleNamespace(total_memory=gigabytes * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, properties=properties: properties)
        assert evaluator._max_pixels(torch.device("cuda", 0)) == pixels
