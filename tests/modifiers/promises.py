"""Checks of properties of all modifiers, called by the tests of each modifier. Most are from `pogm.testing`."""

import dataclasses
from typing import Any

import torch
from support import assert_close, no_synchronisation, trial

from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.modifiers.base import Modifier
from pogm.testing import assert_batched_equals_single as assert_batched_equals_single
from pogm.testing import assert_domains_by_vmap_equal_a_loop as assert_domains_by_vmap_equal_a_loop
from pogm.testing import assert_resumes as assert_resumes
from pogm.testing import make_modified_trial as modified


def session(made: Trial, **options: Any) -> Session:
    return Session([made.task(None)], Engine(**options))


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
