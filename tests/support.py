"""Small problems that tests share."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from pogm.algorithms.base import Algorithm
from pogm.benchmark.plan.trial import Trial
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import State
from pogm.data.datasets import dataset_class
from pogm.engine.per_domain import gradient, map_by_loop

K, B, C, INPUTS, WIDTH = 3, 8, 4, 6, 5

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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


def features(batch_norm: bool = False, inputs: int = INPUTS) -> nn.Module:
    norm = [nn.BatchNorm1d(WIDTH)] if batch_norm else []
    return nn.Sequential(nn.Linear(inputs, WIDTH), *norm, nn.Tanh())


def toy(
    algorithm: Algorithm,
    *,
    lr: float = 0.05,
    weight_decay: float = 0.0,
    domains: int = K,
    each_domain: Any = map_by_loop,
    batch_norm: bool = False,
    seed: int = 0,
) -> tuple[State, Problem]:
    """Return a state and a problem in float64: a small network on random numbers."""
    torch.manual_seed(seed)
    made, width = algorithm.featurizer(lambda shape: (features(batch_norm, shape[0]), WIDTH), (INPUTS,))
    network: Network = algorithm.build(made, width, C, domains).double().train()
    problem = Problem(
        network=network.requires_grad_(False),
        optimizer=algorithm.optimizer(lr, weight_decay),
        num_domains=domains,
        num_classes=C,
        gradient=gradient,
        each_domain=each_domain,
        live=live_buffers(network),
    )
    params = {name: leaf.detach().clone() for name, leaf in network.named_parameters()}
    buffers = {name: leaf.clone() for name, leaf in network.named_buffers()}
    return algorithm.start(params, buffers, random.key(seed), problem), problem


def batches(count: int = 1, *, domains: int = K, size: int = B, seed: int = 0) -> list[Batch]:
    """Return random minibatches; each domain has its own mean, so that gradients differ."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        shift = torch.arange(domains, dtype=torch.float64).reshape(-1, 1, 1)
        x = torch.randn(domains, size, INPUTS, generator=generator, dtype=torch.float64) + shift
        made.append(Batch(x, torch.randint(C, (domains, size), generator=generator)))
    return made


def steps(algorithm: Algorithm, count: int, *, seed: int = 0, **options: Any) -> State:
    """Return the state after some steps of an algorithm on the toy problem."""
    state, problem = toy(algorithm, seed=seed, **options)
    domains = options.get("domains", K)
    for number in range(count):
        made = batches(algorithm.minibatches, domains=domains, seed=seed * 1000 + number)
        with torch.no_grad():
            state, _ = algorithm.step(state, made, problem)
    return state


def assert_close(left: trees.Tree, right: trees.Tree, tolerance: float = 1e-10) -> None:
    """Assert that two trees have the same leaves, up to rounding."""
    mine, theirs = dict(trees.named_leaves(left)), dict(trees.named_leaves(right))
    assert mine.keys() == theirs.keys()
    for name, leaf in mine.items():
        torch.testing.assert_close(
            leaf, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def trial(algorithm: Algorithm, dataset: str = "RotatedDigits", **options: Any) -> Trial:
    """Return a short trial on embedded data."""
    known = dataset_class(dataset)()
    defaults: dict[str, Any] = {
        "test_domains": (0,),
        "training": known.training,
        "steps": 21,
        "evaluate_every": 10,
    }
    return Trial(dataset=known, algorithm=algorithm, **defaults | options)
