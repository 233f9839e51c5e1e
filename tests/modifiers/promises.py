"""Checks of properties of all modifiers, called by the tests of each modifier."""

import dataclasses
from typing import Any

import torch
from support import assert_close, no_synchronisation, trial

from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.engine import checkpoint
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.modifiers.base import Modifier


def modified(algorithm: Algorithm, *modifiers: Modifier, network: str = "mnist_cnn", **options: Any) -> Trial:
    """Return a trial with small minibatches, in float64."""
    made = trial(algorithm, precision="fp64", modifiers=modifiers, **options)
    training = dataclasses.replace(made.training, network=network, batch_size=4, weight_decay=1e-2)
    return dataclasses.replace(made, training=training)


def session(made: Trial, **options: Any) -> Session:
    return Session([made.task(None)], Engine(**options))


def assert_batched_equals_single(
    algorithm: Algorithm, *modifiers: Modifier, evaluated: bool = False, **options: Any
) -> None:
    """Check that batched trials equal single trials; they differ in seeds, test domain, rates and all floats."""
    first = modified(algorithm, *modifiers, **options)
    training = dataclasses.replace(first.training, lr=2e-3, weight_decay=1e-3)
    second = {"seed": 1, "data_seed": 1, "trial_seed": 1, "test_domains": (3,)}
    others = tuple(_smaller(modifier) for modifier in modifiers)
    trials = [first, dataclasses.replace(first, training=training, modifiers=others, **second)]
    together = Session([t.task(None) for t in trials], Engine())
    apart = [session(t) for t in trials]
    for _ in range(2):
        for each in (together, *apart):
            each.step()
    for row, each in enumerate(apart):
        assert_close(trees.index(together.train_state, row), each.train_state, 1e-8)
    if evaluated:
        assert together.accuracies() == [each.accuracies()[0] for each in apart]


def _smaller(modifier: Modifier) -> Modifier:
    floats = [field.name for field in fields(modifier) if isinstance(field.default, float)]
    return dataclasses.replace(modifier, **{name: getattr(modifier, name) / 1.5 for name in floats})


def assert_domains_by_vmap_equal_a_loop(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    made = modified(algorithm, *modifiers, **options)
    loop, mapped = (session(made, domains=domains) for domains in ("loop", "vmap"))
    for each in (loop, mapped):
        each.step()
        each.step()
    assert_close(loop.train_state, mapped.train_state, 1e-8)


def assert_resumes(folder: Any, algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that a run that is saved after two of four steps and loaded ends with the same bits."""
    made = modified(algorithm, *modifiers, **options)
    whole, first, second = (session(made) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    checkpoint.save(folder / "c", first.train_state, trial="t", after=0)
    second.train_state, _ = checkpoint.load(folder / "c", second.train_state, "t")
    for _ in range(2):
        second.step()
    assert_close(second.train_state, whole.train_state, 0.0)


def accuracy(algorithm: Algorithm, *modifiers: Modifier, steps: int = 61, **options: Any) -> float:
    """Return the accuracy on a test domain after some steps."""
    made = trial(algorithm, steps=steps, evaluate_every=steps - 1, test_domains=(2,), modifiers=modifiers)
    training = dataclasses.replace(made.training, **options)
    made = dataclasses.replace(made, training=training)
    *_, last = train(session(made), made.schedule)
    result: float = last.accuracies[0][2 * 2]
    return result


def assert_captured_equals_the_host(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that captured steps and steps without capture on a GPU equal those on the CPU, without synchronisation."""
    made = modified(algorithm, *modifiers, **options)
    host, captured, plain = session(made), session(made, device="cuda"), session(made, device="cuda", capture=False)
    for number in range(4):
        host.step()
        captured.step()
        if number < 2:
            plain.step()
        else:
            with no_synchronisation():
                plain.step()
    for each in (captured, plain):
        assert_close(trees.map_leaves(torch.Tensor.cpu, each.train_state), host.train_state, 1e-7)
