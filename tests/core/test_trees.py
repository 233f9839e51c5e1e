"""Arithmetic on trees of tensors."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from pogm.core import trees


class Pair(NamedTuple):
    left: Tensor
    right: dict[str, Tensor]


TREE = Pair(torch.tensor([1.0, 2.0]), {"a": torch.tensor([3.0, torch.nan])})


def test_map_keeps_the_structure_of_the_tree():
    doubled = trees.map_leaves(lambda leaf: 2 * leaf, TREE)
    assert isinstance(doubled, Pair)
    assert doubled.left.tolist() == [2.0, 4.0]
    assert trees.map_leaves(torch.neg, [TREE.left, (TREE.left,)])[1][0].tolist() == [-1.0, -2.0]


def test_named_yields_paths():
    assert [name for name, _ in trees.named_leaves(TREE)] == ["left", "right/a"]


def test_masked_replaces_nan_by_zero():
    hidden = trees.mask(torch.tensor([True, False]), TREE)
    assert hidden.right["a"].tolist() == [3.0, 0.0]


def test_combine_is_the_weighted_sum_over_the_leading_axis():
    stacked = {"w": torch.arange(6.0).reshape(3, 2)}
    weights = torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)
    assert trees.combine(weights, stacked)["w"].tolist() == [-3.0, -2.5]


def test_float64_rate_keeps_float32_weights():
    moved = trees.move({"w": torch.ones(2)}, {"w": torch.ones(2)}, torch.tensor(0.5, dtype=torch.float64))
    assert moved["w"].dtype == torch.float32


def test_mean_of_integers_is_the_first_one():
    stacked = {"count": torch.tensor([3, 3]), "mean": torch.tensor([1.0, 3.0])}
    assert {name: leaf.item() for name, leaf in trees.mean(stacked).items()} == {"count": 3, "mean": 2.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_number_that_is_not_finite_is_found_at_every_place(bad, dtype):
    largest = torch.finfo(dtype).max  # finite: a sum of such numbers would overflow
    tree = {"a": torch.full((2, 3), largest, dtype=dtype), "b": torch.zeros(1, dtype=dtype), "none": torch.zeros(0)}
    assert trees.all_finite(tree)
    for index in range(6):
        broken = tree["a"].clone()
        broken.view(-1)[index] = bad
        assert not trees.all_finite(tree | {"a": broken})
    both = torch.stack([tree["a"], broken])
    assert vmap(trees.is_finite)(both).tolist() == [True, False]
