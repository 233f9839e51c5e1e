"""Contract tests of algorithms: one step, and short runs on a CPU and on a GPU."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.core.state import State
from pogm.diagnostics import Probe
from pogm.engine.per_domain import map_by_loop, map_by_vmap
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.testing.classes import check_descriptions, check_docstring, check_presets, check_search_space
from pogm.testing.problems import (
    assert_close,
    expect,
    has_changed,
    make_batches,
    make_problem,
    make_trial,
    no_synchronisation,
    save_and_load,
    start_schedules,
    take_steps,
)

NETWORKS = ("mlp", "mnist_cnn")


def check_loop_and_vmap(cls: type[Algorithm]) -> None:
    """Work on domains in a loop and under vmap gives the same result."""
    loop = take_steps(start_schedules(cls), 4, each_domain=map_by_loop)
    assert_close(loop, take_steps(start_schedules(cls), 4, each_domain=map_by_vmap))


def check_step(cls: type[Algorithm]) -> None:
    """A step changes the weights, adds 1 to the step, returns a finite loss and leaves its inputs unchanged."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    made = make_batches(algorithm.minibatches)
    before = trees.map_leaves(torch.clone, state)
    after, metrics = algorithm.step(state, made, problem)
    assert_close(state, before, 0.0)
    expect(has_changed(state, after), "Expected a step to change the weights; found the same weights.")
    expect("loss" in metrics, f"Expected the metric 'loss' of a step; found {sorted(metrics)}.")
    expect(torch.isfinite(metrics["loss"]), f"Expected a finite loss; found {metrics['loss']}.")
    expect(after.step == state.step + 1, f"Expected the step {int(state.step) + 1}; found {int(after.step)}.")


def check_shapes(cls: type[Algorithm]) -> None:
    """A step keeps the shapes and dtypes of the state, so that it can be captured, stacked over trials and saved."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    after, _ = algorithm.step(state, make_batches(algorithm.minibatches), problem)
    before, found = (
        {name: f"{list(leaf.shape)} {leaf.dtype}" for name, leaf in trees.named_leaves(each)} for each in (state, after)
    )
    changed = {name: value for name, value in found.items() if before.get(name) != value}
    changed |= dict.fromkeys(before.keys() - found.keys(), "missing")
    expect(not changed, f"Expected the shapes and dtypes that `start` returned; found {changed}.")


def check_repeatability(cls: type[Algorithm]) -> None:
    """The same steps give the same bits, whatever the state of torch's random generator is."""
    algorithm = start_schedules(cls)
    ends = []
    for seed in (0, 1):
        state, problem = make_problem(algorithm)
        torch.manual_seed(seed)
        for number in range(3):
            state, _ = algorithm.step(state, make_batches(algorithm.minibatches, seed=number), problem)
        ends.append(state)
    assert_close(ends[1], ends[0], 0.0)


def check_vmap(cls: type[Algorithm]) -> None:
    """A step works under vmap over trials."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    made = make_batches(algorithm.minibatches)

    def step(state: State) -> State:
        return algorithm.step(state, made, problem)[0]

    mapped = vmap(step)(trees.stack([state, state]))
    assert_close(trees.index(mapped, 1), step(state))


def check_one_domain(cls: type[Algorithm]) -> None:
    """The algorithm works with one training domain, or says in ``min_domains`` that it does not."""
    if cls.min_domains > 1:
        try:
            make_trial(cls(), test_domains=(0, 1, 2, 3, 4))
        except UsageError as error:
            expected = f"at least {cls.min_domains} training domains for {cls.__name__}"
            expect(expected in str(error), f"Expected an error with {expected!r}; found {str(error)!r}.")
            return
        raise AssertionError("Expected an error for one training domain; found none.")
    state, _ = make_problem(start_schedules(cls), domains=1)
    after = take_steps(start_schedules(cls), 4, domains=1)
    expect(trees.all_finite(after.params), "Expected finite weights after 4 steps on one domain; found others.")
    expect(has_changed(state, after), "Expected steps on one domain to change the weights; found the same weights.")


def check_batch_norm(cls: type[Algorithm]) -> None:
    """A step updates the running statistics of batch norm."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm, batch_norm=True)
    after, _ = algorithm.step(state, make_batches(algorithm.minibatches), problem)
    name = next(name for name in problem.live if name.endswith("running_mean"))
    changed = not torch.equal(after.buffers[name], state.buffers[name])
    expect(changed, "Expected a step to change the running statistics; found the same. Return Loss.buffers.")
    mapped = take_steps(algorithm, 2, batch_norm=True, each_domain=map_by_vmap)
    # The gradient of a bias before batch norm is rounding error, which Adam amplifies.
    assert_close(mapped, take_steps(algorithm, 2, batch_norm=True), 1e-7)


def make_two_trials(cls: type[Algorithm], network: str, weight_decay: float = 1e-3) -> list[Trial]:
    """Return two trials that differ in seed, data, split, test domain and every hyperparameter that is a float."""
    floats = [f.name for f in fields(cls) if isinstance(f.default, float)]
    other = dataclasses.replace(start_schedules(cls), **{name: getattr(cls(), name) / 1.1 for name in floats})
    held_out = ((0, 1, 2), (3, 4, 5))  # three training domains, which take less time than five
    first = make_trial(start_schedules(cls), precision="fp64", test_domains=held_out[0], probe=Probe(every=3, lag=3))
    small = dataclasses.replace(first.training, network=network, batch_size=4)
    second: dict[str, Any] = {"seed": 1, "data_seed": 1, "trial_seed": 1, "test_domains": held_out[1]}
    training = dataclasses.replace(small, lr=1e-3, weight_decay=weight_decay)
    return [
        dataclasses.replace(first, training=small),
        dataclasses.replace(first, training=training, algorithm=other, **second),
    ]


def check_batched_trials(cls: type[Algorithm], networks: Sequence[str] = NETWORKS, weight_decay: float = 1e-3) -> None:
    """Trials in a batch give the same result as single trials."""
    for network in networks:
        trials = make_two_trials(cls, network, weight_decay)
        batched = Session([trial.task(None) for trial in trials], Engine())
        single = [Session([trial.task(None)], Engine()) for trial in trials]
        for number in range(3):  # schedules start at step 2, and the step after a probe uses what the probe left
            for session in (batched, *single):
                session.step(probing=number == 1)
        for row, session in enumerate(single):
            assert_close(trees.index(batched.train_state, row), session.train_state, 1e-8)
        if network == "mlp":
            found, expected = batched.accuracies(), [session.accuracies()[0] for session in single]
            expect(found == expected, f"Expected the accuracies of single trials, {expected}; found {found}.")


def check_loop_and_vmap_in_runs(cls: type[Algorithm], networks: Sequence[str] = NETWORKS) -> None:
    """Domains in a loop and under vmap give the same result in a run."""
    for network in networks:
        task = make_two_trials(cls, network)[0].task(None)
        loop, mapped = (Session([task], Engine(domains=domains)) for domains in ("loop", "vmap"))
        for session in (loop, mapped):
            for _ in range(2):
                session.step(probing=True)
        assert_close(loop.train_state, mapped.train_state, 1e-8)


def check_resume(cls: type[Algorithm]) -> None:
    """A run that is saved and loaded continues with the same bits; the checkpoint includes the memory."""
    task = make_two_trials(cls, "mlp")[0].task(None)
    whole, second = (Session([task], Engine()) for _ in range(2))
    for number in range(3):
        whole.step(probing=number % 2 == 0)
    second.train_state = save_and_load(whole, second)
    for session in (whole, second):
        for number in range(3, 5):
            session.step(probing=number % 2 == 0)
    assert_close(second.train_state, whole.train_state, 0.0)


def check_learning(cls: type[Algorithm]) -> None:
    """The accuracy on an unseen domain with ten classes is above 50% after 61 steps.

    Schedules start late, because some penalties with full weight from the start have their minimum at constant outputs.
    """
    trial = make_trial(start_schedules(cls, at=50), steps=61, evaluate_every=60, test_domains=(0, 2, 4))
    trial = dataclasses.replace(trial, training=dataclasses.replace(trial.training, batch_size=16))
    evaluations = [found for found in train(Session([trial.task(None)], Engine()), trial.schedule) if found]
    accuracy = evaluations[-1].accuracies[0][2 * 2]
    expect(accuracy > 0.5, f"Expected an accuracy above 50%; found {accuracy:.0%}.")


def check_no_synchronisation(cls: type[Algorithm], networks: Sequence[str] = NETWORKS) -> None:
    """A step on a GPU does not make the host wait."""
    for network in networks:
        session = Session([make_two_trials(cls, network)[0].task(None)], Engine("cuda", capture=False))
        for _ in range(2):
            session.step(probing=True)
        with no_synchronisation():
            session.step(probing=True)


def check_captured_steps(
    cls: type[Algorithm],
    networks: Sequence[str] = NETWORKS,
    counts: Sequence[int] = (1, 2),
    weight_decay: float = 1e-3,
) -> None:
    """Captured steps on a GPU equal steps on the CPU, for one trial and for two."""
    for network in networks:
        for count in counts:
            trials = make_two_trials(cls, network, weight_decay)[:count]
            captured = Session([trial.task(None) for trial in trials], Engine("cuda"))
            plain = [Session([trial.task(None)], Engine("cpu")) for trial in trials]
            for number in range(7):
                for session in (captured, *plain):
                    session.step(probing=number % 2 == 0)
            for row, session in enumerate(plain):
                one = trees.index(captured.train_state, row) if count > 1 else captured.train_state
                assert_close(trees.map_leaves(torch.Tensor.cpu, one), session.train_state, 1e-7)


ALGORITHM_CHECKS: tuple[Callable[[type[Algorithm]], None], ...] = (
    check_docstring,
    check_descriptions,
    check_search_space,
    check_presets,
    check_step,
    check_shapes,
    check_repeatability,
    check_loop_and_vmap,
    check_vmap,
    check_one_domain,
    check_batch_norm,
    check_batched_trials,
    check_loop_and_vmap_in_runs,
    check_resume,
    check_learning,
)
ALGORITHM_GPU_CHECKS: tuple[Callable[[type[Algorithm]], None], ...] = (check_no_synchronisation, check_captured_steps)
