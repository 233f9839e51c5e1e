"""Contract tests of modifiers, combined with an algorithm: short runs on a CPU."""

import dataclasses
from collections.abc import Callable
from typing import Any

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.benchmark.plan.shared_training import make_task
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.engine.session import Engine, Session
from pogm.modifiers.base import Modifier
from pogm.testing.classes import check_descriptions, check_search_space
from pogm.testing.problems import assert_close, expect, make_session, make_trial, save_and_load


def make_modified_trial(
    algorithm: Algorithm, *modifiers: Modifier, network: str = "mnist_cnn", **options: Any
) -> Trial:
    """Return a trial with modifiers and small minibatches, in float64."""
    made = make_trial(algorithm, precision="fp64", modifiers=modifiers, **options)
    training = dataclasses.replace(made.training, network=network, batch_size=4, weight_decay=1e-2)
    return dataclasses.replace(made, training=training)


def check_modifier_effect(cls: type[Modifier]) -> None:
    """A run with the modifier works and gives the same bits again, and the modifier overrides at least one hook."""
    with_modifier, again = (make_session(make_modified_trial(ERM(), cls())) for _ in range(2))
    for session in (with_modifier, again):
        for _ in range(3):
            session.step()
    assert_close(with_modifier.train_state, again.train_state, 0.0)
    finite = trees.all_finite(with_modifier.train_state.state.params)
    expect(finite, "Expected finite weights after 3 steps; found others.")
    hooks = [name for name, value in vars(Modifier).items() if callable(value) and not name.startswith("_")]
    changed = [name for name in hooks if getattr(cls, name, None) is not getattr(Modifier, name)]
    expect(changed, f"Expected a modifier to override a hook ({', '.join(hooks)}); found none.")


def check_modifier_training(cls: type[Modifier]) -> None:
    """A modifier that says that it does not change the training shares it with a run without the modifier.

    That run has the weights and the scores that it would have alone.
    """
    if cls.changes_training:
        return
    plain = make_modified_trial(ERM())
    alone = make_session(plain)
    shared = Session([make_task([plain, make_modified_trial(ERM(), cls())], None)], Engine())
    for step in range(3):
        for session in (alone, shared):
            session.step()
            session.observe(step)
    assert_close(shared.train_state.state, alone.train_state.state, 0.0)
    found, expected = shared.scores()[0], alone.scores()[0]
    expect(found == expected, f"Expected the scores of a run without the modifier, {expected}; found {found}.")


def check_modifier_batched_trials(cls: type[Modifier]) -> None:
    """Trials in a batch, with different values of every float, give the same result as single trials."""
    assert_batched_equals_single(ERM(), cls())


def check_modifier_loop_and_vmap(cls: type[Modifier]) -> None:
    """Domains in a loop and under vmap give the same result."""
    assert_domains_by_vmap_equal_a_loop(ERM(), cls())


def check_modifier_resume(cls: type[Modifier]) -> None:
    """A run that is saved and loaded continues with the same bits; the checkpoint includes the memory."""
    assert_resumes(ERM(), cls())


def assert_batched_equals_single(
    algorithm: Algorithm, *modifiers: Modifier, evaluated: bool = False, **options: Any
) -> None:
    """Check that batched trials equal single trials; they differ in seeds, test domain, rates and all floats."""
    first = make_modified_trial(algorithm, *modifiers, **options)
    training = dataclasses.replace(first.training, lr=2e-3, weight_decay=1e-3)
    second: dict[str, Any] = {"seed": 1, "data_seed": 1, "trial_seed": 1, "test_domains": (3,)}
    others = tuple(_smaller(modifier) for modifier in modifiers)
    trials = [first, dataclasses.replace(first, training=training, modifiers=others, **second)]
    together = Session([trial.task(None) for trial in trials], Engine())
    apart = [make_session(trial) for trial in trials]
    for _ in range(2):
        for each in (together, *apart):
            each.step()
    for row, each in enumerate(apart):
        assert_close(trees.index(together.train_state, row), each.train_state, 1e-8)
    if evaluated:
        found, expected = together.accuracies(), [each.accuracies()[0] for each in apart]
        expect(found == expected, f"Expected the accuracies of single trials, {expected}; found {found}.")


def assert_domains_by_vmap_equal_a_loop(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that domains in a loop and under vmap give the same result after two steps."""
    made = make_modified_trial(algorithm, *modifiers, **options)
    loop, mapped = (make_session(made, domains=domains) for domains in ("loop", "vmap"))
    for each in (loop, mapped):
        each.step()
        each.step()
    assert_close(loop.train_state, mapped.train_state, 1e-8)


def assert_resumes(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that a run that is saved after two of four steps and loaded ends with the same bits."""
    made = make_modified_trial(algorithm, *modifiers, **options)
    whole, first, second = (make_session(made) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    second.train_state = save_and_load(first, second)
    for _ in range(2):
        second.step()
    assert_close(second.train_state, whole.train_state, 0.0)


def _smaller(modifier: Modifier) -> Modifier:
    floats = [field.name for field in fields(modifier) if isinstance(field.default, float)]
    return dataclasses.replace(modifier, **{name: getattr(modifier, name) / 1.5 for name in floats})


MODIFIER_CHECKS: tuple[Callable[[type[Modifier]], None], ...] = (
    check_descriptions,
    check_search_space,
    check_modifier_effect,
    check_modifier_training,
    check_modifier_batched_trials,
    check_modifier_loop_and_vmap,
    check_modifier_resume,
)
