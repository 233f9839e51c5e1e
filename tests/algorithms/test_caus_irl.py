"""CausIRL: what both distances share."""

import pytest
import torch
from support import B, K, assert_close, batches, steps, toy
from torch.func import vmap

from pogm import ERM
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.algorithms.caus_irl import split_samples
from pogm.core import random
from pogm.core.batch import Batch

both = pytest.mark.parametrize("name", ["CausIRLCORAL", "CausIRLMMD"])


def test_base_class_is_not_registered():
    assert "CausIRL" not in all_algorithms()


def test_each_domain_is_cut_at_a_uniformly_random_place():
    counts = vmap(lambda key: split_samples(key, K, B).sum(1))(random.split(random.key(0), 2000))  # s_k: [2000, K]
    first = split_samples(random.key(7), K, B)
    assert torch.equal(first, first.sort(dim=1, descending=True).values), "the first samples of a domain"
    shares = torch.bincount(counts.flatten(), minlength=B) / counts.numel()
    assert len(shares) == B, "never all samples, as in DomainBed"
    assert (shares - 1 / B).abs().max() < 0.02


@both
def test_weight_zero_gives_erm(name):
    assert_close(steps(algorithm_class(name)(penalty=0.0), 4).params, steps(ERM(), 4).params)


@both
def test_mixtures_change_with_the_step_and_the_seed(name):
    method = algorithm_class(name)()
    state, problem = toy(method)
    (batch,) = batches()
    model = problem.model(state.params, state)
    states = (state, state._replace(step=torch.tensor(1)), state._replace(key=random.key(9)))
    assert len({method.loss(model, batch, one).metrics["penalty"].item() for one in states}) == 3


@both
def test_equal_samples_have_no_penalty(name):
    (batch,) = batches()
    same = Batch(batch.x[:1, :1].expand_as(batch.x), batch.y)
    state, problem = toy(algorithm_class(name)())
    loss = algorithm_class(name)().loss(problem.model(state.params, state), same, state)
    assert loss.metrics["penalty"].abs() < 1e-12


@both
def test_group_of_one_sample_has_no_penalty(name):
    """With one domain of two samples, one of the groups has at most one sample. The gradient is that of ERM."""
    method = algorithm_class(name)()
    state, problem = toy(method, domains=1)
    (batch,) = batches(domains=1, size=2)
    for seed in range(3):
        keyed = state._replace(key=random.key(seed))
        found, loss = method.gradient(keyed, batch, problem)
        assert loss.metrics["penalty"] == 0
        assert_close(found, ERM().gradient(keyed, batch, problem)[0])
