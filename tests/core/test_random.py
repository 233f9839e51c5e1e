"""Random numbers as a function of a key."""

import pytest
import torch
from torch.func import vmap

from pogm.core import random


def test_stream_is_splitmix64():
    """The first outputs of the published generator with state 0."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    ours = random.split(torch.tensor(0), 3)
    assert [value % 2**64 for value in ours.tolist()] == published


def test_a_few_keys_are_the_first_of_many():
    key, most = random.key(7), random.MANY
    many, numbers = random.split(key, most + 1), random.uniform(key, (most + 1,))
    for count in (0, 1, 2, 5, most):
        assert torch.equal(random.split(key, count), many[:count])
        assert torch.equal(random.uniform(key, (count,)), numbers[:count])


def test_fold_of_a_scalar_equals_fold_of_a_tensor():
    keys = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789123456789])
    for data in (0, 7, 2**40, -(2**62), torch.tensor(5)):
        together = random.fold(keys, data)
        alone = [random.fold(key, data) for key in keys]
        assert [one.item() for one in alone] == together.tolist()
        assert all(one.dtype == torch.int64 and one.ndim == 0 for one in alone)


def test_uniform_numbers_are_uniform_and_uncorrelated():
    numbers = random.uniform(random.key(1), (200_000,))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 3e-3
    assert abs(numbers.var() - 1 / 12) < 1e-3
    assert abs(torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1]) < 0.01


def test_keys_of_consecutive_steps_give_uncorrelated_numbers():
    first = random.uniform(random.fold(random.key(0), 0), (50_000,))
    second = random.uniform(random.fold(random.key(0), 1), (50_000,))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.02


def test_numbers_are_the_same_under_vmap():
    keys = random.split(random.key(3), 4)
    together = vmap(lambda key: random.uniform(key, (5, 2)))(keys)
    assert torch.equal(together, torch.stack([random.uniform(key, (5, 2)) for key in keys]))


def test_normal_numbers_have_mean_zero_and_variance_one():
    numbers = random.normal(random.key(5), (100_000,))
    assert abs(numbers.mean()) < 0.02
    assert abs(numbers.var() - 1) < 0.02


def test_permutations_are_uniform():
    drawn = torch.stack([random.permutation(random.key(seed), 4) for seed in range(2000)])
    assert torch.equal(drawn.sort(1).values, torch.arange(4).expand(2000, 4))
    assert (drawn[:, 0].bincount() / 2000 - 0.25).abs().max() < 0.05


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 10.0])
def test_beta_numbers_have_the_mean_and_variance_of_the_beta_distribution(alpha):
    numbers = random.beta(random.key(7), alpha, (100_000,))
    assert numbers.isfinite().all()
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / (4 * (2 * alpha + 1))) < 0.005
