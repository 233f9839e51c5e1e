"""Random layers: dropout masks are a function of the state."""

import dataclasses

import numpy as np
import pytest
import torch
from support import assert_close, needs_gpu, trial
from torch import nn
from torch.func import vmap

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.pogm import POGM
from pogm.core import random, trees
from pogm.core.hyperparameters import fields
from pogm.core.random_layers import Dropout, key_buffers
from pogm.data.datasets.base import Training, seed_hash
from pogm.engine import checkpoint
from pogm.engine.session import Engine, Session
from pogm.engine.task import Task
from pogm.models import build_features

both = pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2)], ids=["ERM", "POGM"])


def layer(rate: float, seed: int = 0) -> Dropout:
    made = Dropout(rate)
    made.key.copy_(random.key(seed))
    return made


def task(algorithm: Algorithm, *, dropout: float = 0.5, network: str = "timm/test_efficientnet", **options) -> Task:
    training = Training(network=network, dropout=dropout, batch_size=3)
    return trial(algorithm, precision="fp64", training=training, **options).task(None)


def session(*tasks: Task, steps: int = 0, engine: Engine | None = None) -> Session:
    made = Session(tasks, engine or Engine())
    for _ in range(steps):
        made.step()
    return made


def mask(training: Session) -> torch.Tensor:
    """Return the output of dropout for ones, in the next step of the session."""
    state = training.train_state.state
    buffers = training.config.problem.model(state.params, state).buffers
    name = next(name for name in buffers if name.endswith("dropout.key"))
    made = Dropout(0.5)
    made.key.copy_(buffers[name])
    return made(torch.ones(4, 100))


def test_dropout_is_the_identity_in_evaluation_mode():
    z = torch.randn(5, 7)
    assert layer(0.5).eval()(z) is z


def test_rate_zero_is_the_identity():
    z = torch.randn(5, 7)
    assert torch.equal(layer(0.0)(z), z)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_preserves_the_expectation(rate):
    dropped = layer(rate)(torch.full((400, 500), 3.0, dtype=torch.float64))
    values = dropped.unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 3.0 / (1 - rate)], dtype=torch.float64))
    deviation = 3 * (rate / (1 - rate)) ** 0.5 / dropped.numel() ** 0.5
    assert abs(dropped.mean() - 3) < 4 * deviation
    assert abs((dropped == 0).double().mean() - rate) < 0.01


def test_mask_is_a_function_of_the_key():
    z = torch.ones(8, 64)
    assert torch.equal(layer(0.5)(z), layer(0.5)(z))
    assert not torch.equal(layer(0.5)(z), layer(0.5, seed=1)(z))


def test_trials_with_different_rates_and_keys_can_be_batched():
    layers, z = [layer(0.1, 0), layer(0.5, 1), layer(0.0, 2)], torch.randn(3, 6, 10)
    key, rate = (torch.stack([getattr(each, name) for each in layers]) for name in ("key", "rate"))

    def one(key, rate, z):
        return torch.func.functional_call(layers[0], {"key": key, "rate": rate}, (z,))

    separate = torch.stack([each(part) for each, part in zip(layers, z, strict=True)])
    assert torch.equal(vmap(one)(key, rate, z), separate)


def test_keys_are_not_in_the_state_dict():
    assert list(Dropout(0.5).state_dict()) == []
    assert key_buffers(nn.Sequential(nn.ReLU(), Dropout())) == ("1.key",)
    assert key_buffers(Dropout()) == ("key",)


def test_mnist_cnn_has_no_dropout():
    features, _ = build_features("mnist_cnn", (1, 8, 8), dropout=0.5)
    assert key_buffers(features) == ()


@both
def test_repeated_run_gives_identical_results(algorithm):
    state = torch.random.get_rng_state()
    once, again = (session(task(algorithm), steps=2).train_state for _ in range(2))
    assert_close(once, again, 0.0)
    assert torch.equal(state, torch.random.get_rng_state()), "the generator of torch is not used"


def test_dropout_changes_the_weights():
    with_it, without = (session(task(ERM(), dropout=rate), steps=1).train_state.state for rate in (0.5, 0.0))
    assert not torch.equal(with_it.params["head.weight"], without.params["head.weight"])


def test_masks_differ_between_steps_and_seeds():
    first, third = session(task(ERM())), session(task(ERM()), steps=2)
    other = session(task(ERM(), seed=1))
    assert torch.equal(mask(first), mask(session(task(ERM()))))
    assert not torch.equal(mask(first), mask(third))
    assert not torch.equal(mask(first), mask(other))


def test_layers_of_one_network_have_different_masks():
    network = nn.Sequential(Dropout(0.5), nn.ReLU(), Dropout(0.5))
    training = session(task(ERM()))
    problem = dataclasses.replace(training.config.problem, network=network)
    buffers = problem.model({}, training.train_state.state).buffers
    assert buffers["0.key"] != buffers["2.key"]


def test_accuracies_do_not_depend_on_dropout():
    training = session(task(ERM()))
    plain = session(task(ERM(), dropout=0.0))
    assert training.accuracies() == plain.accuracies()


@both
def test_batched_trials_equal_single_trials(algorithm):
    tasks = [task(algorithm), task(algorithm, dropout=0.1, seed=1, test_domains=(2,))]
    batched, single = session(*tasks, steps=2), [session(one, steps=2) for one in tasks]
    for row, alone in enumerate(single):
        assert_close(trees.index(batched.train_state, row), alone.train_state, 1e-8)


def test_domains_by_vmap_equal_domains_in_a_loop():
    loop, mapped = (session(task(POGM()), steps=2, engine=Engine(domains=strategy)) for strategy in ("loop", "vmap"))
    assert_close(loop.train_state, mapped.train_state, 1e-8)


@both
def test_resumed_run_has_the_same_masks(algorithm, tmp_path):
    uninterrupted, first, second = (
        session(task(algorithm), steps=3),
        session(task(algorithm), steps=2),
        session(task(algorithm)),
    )
    checkpoint.save(tmp_path / "c", first.train_state, trial="t", after=0)
    second.train_state, _ = checkpoint.load(tmp_path / "c", second.train_state, "t")
    second.step()
    assert_close(second.train_state, uninterrupted.train_state, 0.0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rates", [[0.5], [0.5, 0.1]], ids=["single", "batched"])
def test_captured_steps_on_a_gpu_have_the_masks_of_a_cpu(rates):
    tasks = [task(POGM(), dropout=rate, network="mobilenet_v2", seed=seed) for seed, rate in enumerate(rates)]
    captured, plain = session(*tasks, steps=2, engine=Engine("cuda")), [session(one, steps=2) for one in tasks]
    for row, alone in enumerate(plain):
        one = trees.index(captured.train_state, row) if len(tasks) > 1 else captured.train_state
        assert_close(trees.map_leaves(torch.Tensor.cpu, one), alone.train_state, 1e-7)


def test_search_draws_the_rates_of_domainbed():
    """protocol.md §16: PACS, hparams_seed 1 and DomainNet, hparams_seed 6, both of trial 0."""
    (field,) = (field for field in fields(Training) if field.name == "dropout")
    for hparams_seed, expected in ((1, 0.5), (6, 0.1)):
        source = np.random.RandomState(seed_hash(seed_hash(hparams_seed, 0), field.metadata["draw_as"]))
        assert field.metadata["space"].draw(source) == expected
