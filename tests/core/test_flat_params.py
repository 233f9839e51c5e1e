"""Weights in one tensor: a dictionary like any other, whose arithmetic is one operation."""

import pytest
import torch
from torch.func import grad, vmap

from pogm.core import trees
from pogm.core.flat_params import FlatParams, flat_vector, flatten, unflatten

PLAIN = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([7.0, 8.0]), "s": torch.tensor([9.0])}


def stacked(count=3):
    """So many different copies, [count, ...] in every leaf."""
    return {name: torch.stack([leaf * (k + 1) for k in range(count)]) for name, leaf in PLAIN.items()}


def same(left, right):
    assert list(left) == list(right)
    assert all(torch.equal(left[name], leaf) and left[name].shape == leaf.shape for name, leaf in right.items())


def test_packed_weights_have_the_names_shapes_and_numbers_they_had():
    tree = flatten(PLAIN)
    same(tree, PLAIN)
    assert tree.flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0]
    same(flatten(stacked(), leading=1), stacked())
    assert flatten(stacked(), leading=1).flat.shape == (3, 9)


def test_a_weight_may_be_a_single_number_without_an_axis():
    """As the gain of a normaliser-free network: stacked it has the leading axis alone."""
    rows = {"gain": torch.tensor([1.0, 2.0]), "w": torch.ones(2, 3)}
    tree = flatten(rows, leading=1)
    same(tree, rows)
    assert tree.flat.shape == (2, 4)


def test_its_leaves_are_views_so_that_one_tensor_holds_all():
    tree = flatten(PLAIN)
    tree.flat.zero_()
    assert all((leaf == 0).all() for leaf in tree.values())
    assert PLAIN["b"].tolist() == [7.0, 8.0], "the original is another"
    assert trees.storages(tree) == [tree.flat]


def test_what_is_packed_already_is_not_copied():
    tree = flatten(PLAIN)
    assert flatten(tree) is tree
    assert flat_vector(tree) is tree.flat


def test_a_vector_gets_its_names_back():
    for tree in (PLAIN, flatten(PLAIN)):
        again = unflatten(flat_vector(tree) + 1, tree)
        same(again, {name: leaf + 1 for name, leaf in PLAIN.items()})
        assert isinstance(again, FlatParams) == isinstance(tree, FlatParams)


def objective(params):
    """Something in which every weight has its own slope."""
    return (params["w"] ** 3).sum() + (params["s"] * params["b"].prod()).sum()


def slopes(params):
    return {
        "w": 3 * params["w"] ** 2,
        "b": params["s"] * params["b"].flip(-1),
        "s": params["b"].prod().reshape(1),
    }


def test_it_is_differentiated_leaf_by_leaf():
    same(grad(objective)(flatten(PLAIN)), slopes(PLAIN))


def test_and_mapped_along_the_leading_axis_of_every_leaf():
    tree = flatten(stacked(), leading=1)
    mapped = vmap(grad(objective))(tree)
    for k in range(3):
        same(trees.index(mapped, k), slopes(trees.index(stacked(), k)))
    same(vmap(lambda one: trees.add(one, one))(tree), trees.add(stacked(), stacked()))


def test_what_a_transform_returns_packed_comes_back_as_leaves():
    result = vmap(lambda one: flatten(trees.add(one, one)))(stacked())
    same(result, trees.add(stacked(), stacked()))


ONES = {
    "torch.neg": torch.neg,
    "double": lambda leaf: leaf.double(),
    "first row": lambda leaf: leaf[0],
    "mean over rows": lambda leaf: leaf.mean(0),
    "repeated": lambda leaf: leaf.expand(2, *leaf.shape),
}


@pytest.mark.parametrize("function", ONES.values(), ids=ONES)
def test_treating_all_numbers_alike_is_treating_leaf_by_leaf(function):
    for tree in (stacked(), flatten(stacked(), leading=1)):
        numbers = trees.map_numbers(function, {"inner": [tree, torch.ones(3, 1)]})
        leaves = trees.map_leaves(function, {"inner": [tree, torch.ones(3, 1)]})
        same(numbers["inner"][0], leaves["inner"][0])
        assert torch.equal(numbers["inner"][1], leaves["inner"][1])
        assert isinstance(numbers["inner"][0], FlatParams) == isinstance(tree, FlatParams)


@pytest.mark.parametrize("left", ["packed", "plain"])
@pytest.mark.parametrize("right", ["packed", "plain"])
def test_packed_and_plain_trees_mix(left, right):
    kinds = {"packed": flatten(stacked(), leading=1), "plain": stacked()}
    total = trees.add(kinds[left], trees.map_numbers(lambda leaf: 2 * leaf, kinds[right]))
    same(total, {name: 3 * leaf for name, leaf in stacked().items()})
    assert isinstance(total, FlatParams) == (left == right == "packed")


def test_trees_packed_in_another_order_are_matched_by_name():
    turned = flatten(dict(reversed(PLAIN.items())))
    same(trees.add(flatten(PLAIN), turned), trees.add(PLAIN, PLAIN))


@pytest.mark.parametrize(
    "function", [trees.mean, lambda tree: trees.index(tree, 1), lambda tree: trees.stack([tree] * 2)]
)
def test_stacking_and_what_undoes_it_keep_the_leaves(function):
    same(function(flatten(stacked(), leading=1)), function(stacked()))


def test_masks_and_conditions_are_per_row():
    held = torch.tensor([True, False, True])
    tree = flatten(stacked(), leading=1)
    same(trees.masked(held, tree), trees.masked(held, stacked()))
    same(trees.where(held, tree, trees.add(tree, tree)), trees.where(held, stacked(), trees.add(stacked(), stacked())))
    weights = torch.tensor([1.0, -1.0, 0.5])
    same(trees.combine(weights, tree), trees.combine(weights, stacked()))
