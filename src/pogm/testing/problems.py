"""Small problems and trials that the contract tests use, and comparisons of states. Tests of a method can use them."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import fields
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import State
from pogm.data.datasets import dataset_class
from pogm.engine import checkpoint
from pogm.engine.per_domain import gradient, map_by_loop
from pogm.engine.session import Engine, Session

DOMAINS, SAMPLES, CLASSES, INPUTS, WIDTH = 3, 8, 4, 6, 5  # sizes of the small problems


def make_problem(
    algorithm: Algorithm,
    *,
    lr: float = 0.05,
    weight_decay: float = 0.0,
    domains: int = DOMAINS,
    each_domain: Any = map_by_loop,
    batch_norm: bool = False,
    seed: int = 0,
) -> tuple[State, Problem]:
    """Return a state and a problem in float64: a small network with random weights, 6 inputs and 4 classes."""
    torch.manual_seed(seed)
    norm = [nn.BatchNorm1d(WIDTH)] if batch_norm else []

    def make(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Linear(shape[0], WIDTH), *norm, nn.Tanh()), WIDTH

    features, width = algorithm.featurizer(make, (INPUTS,))
    network: Network = algorithm.build(features, width, CLASSES, domains).double().train()
    problem = Problem(
        network=network.requires_grad_(False),
        optimizer=algorithm.optimizer(lr, weight_decay),
        num_domains=domains,
        num_classes=CLASSES,
        gradient=gradient,
        each_domain=each_domain,
        live=live_buffers(network),
    )
    params = {name: leaf.detach().clone() for name, leaf in network.named_parameters()}
    buffers = {name: leaf.clone() for name, leaf in network.named_buffers()}
    return algorithm.start(params, buffers, random.key(seed), problem), problem


def make_batches(count: int = 1, *, domains: int = DOMAINS, size: int = SAMPLES, seed: int = 0) -> list[Batch]:
    """Return random minibatches; each domain has its own mean, so that gradients differ."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        shift = torch.arange(domains, dtype=torch.float64).reshape(-1, 1, 1)
        x = torch.randn(domains, size, INPUTS, generator=generator, dtype=torch.float64) + shift
        made.append(Batch(x, torch.randint(CLASSES, (domains, size), generator=generator)))
    return made


def take_steps(algorithm: Algorithm, count: int, *, seed: int = 0, **options: Any) -> State:
    """Return the state after some steps on the problem of `make_problem`, which gets the options."""
    state, problem = make_problem(algorithm, seed=seed, **options)
    domains = options.get("domains", DOMAINS)
    for number in range(count):
        made = make_batches(algorithm.minibatches, domains=domains, seed=seed * 1000 + number)
        with torch.no_grad():
            state, _ = algorithm.step(state, made, problem)
    return state


def make_trial(algorithm: Algorithm, dataset: str = "RotatedDigits", **options: Any) -> Trial:
    """Return a trial of 21 steps on data that come with the package; options are fields of the trial."""
    known = dataset_class(dataset)()
    defaults: dict[str, Any] = {
        "test_domains": (0,),
        "training": known.training,
        "steps": 21,
        "evaluate_every": 10,
    }
    return Trial(dataset=known, algorithm=algorithm, **defaults | options)


def start_schedules(cls: type[Algorithm], at: int = 2) -> Algorithm:
    """Return the algorithm with every schedule starting at a step, so that a few steps reach all phases."""
    return cls(**{field.name: at for field in fields(cls) if field.name.endswith("anneal_iters")})


def make_session(trial: Trial, **options: Any) -> Session:
    """Return a session of one trial; options are those of the engine."""
    return Session([trial.task(None)], Engine(**options))


def assert_close(left: trees.Tree, right: trees.Tree, tolerance: float = 1e-10) -> None:
    """Raise an AssertionError unless two trees have the same leaves, up to rounding."""
    mine, theirs = dict(trees.named_leaves(left)), dict(trees.named_leaves(right))
    expect(mine.keys() == theirs.keys(), f"Expected the leaves {sorted(theirs)}; found {sorted(mine)}.")
    for name, leaf in mine.items():
        try:
            torch.testing.assert_close(leaf, theirs[name], rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def has_changed(before: State, after: State) -> bool:
    """Return True if some weight has changed."""
    return any(not torch.equal(after.params[name], leaf) for name, leaf in before.params.items())


def expect(condition: Any, message: str) -> None:
    """Raise an AssertionError with a message unless the condition holds. Python's option -O does not remove it."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Make every wait of the host for the GPU an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def save_and_load(saved: Session, template: Session) -> Any:
    """Return the state of a session after it was written to a checkpoint and read again."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "c", saved.train_state, trial="t", after=0)
        loaded = checkpoint.load(Path(folder) / "c", template.train_state, "t")
    expect(loaded is not None, "Expected a checkpoint that can be loaded; found none.")
    return loaded[0] if loaded else None
