"""Flat parameters: a dictionary of weights whose arithmetic is one operation on one tensor."""

import pytest
import torch
from torch.func import grad, vmap

from pogm.core import trees
from pogm.core.flat_params import FlatParams, flat_vector, flatten, unflatten

PLAIN = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([7.0, 8.0]), "s": torch.tensor([9.0])}


def stacked(count=3):
    """Return different copies of the weights, [count, ...] in every leaf."""
    return {name: torch.stack([leaf * (k + 1) for k in range(count)]) for name, leaf in PLAIN.items()}


def assert_same(left, right):
    assert list(left) == list(right)
    assert all(torch.equal(left[name], leaf) and left[name].shape == leaf.shape for name, leaf in right.items())


def test_flat_weights_keep_their_names_shapes_and_values():
    tree = flatten(PLAIN)
    assert_same(tree, PLAIN)
    assert tree.flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0]
    assert_same(flatten(stacked(), leading=1), stacked())
    assert flatten(stacked(), leading=1).flat.shape == (3, 9)


def test_weights_may_be_scalars():
    """For example the gain of a normaliser-free network. Stacked, it has only the leading axis."""
    rows = {"gain": torch.tensor([1.0, 2.0]), "w": torch.ones(2, 3)}
    tree = flatten(rows, leading=1)
    assert_same(tree, rows)
    assert tree.flat.shape == (2, 4)


def test_leaves_are_views_of_one_tensor():
    tree = flatten(PLAIN)
    tree.flat.zero_()
    assert all((leaf == 0).all() for leaf in tree.values())
    assert PLAIN["b"].tolist() == [7.0, 8.0], "the original is not changed"
    assert trees.storages(tree) == [tree.flat]


def test_flat_weights_are_not_copied_again():
    tree = flatten(PLAIN)
    assert flatten(tree) is tree
    assert flat_vector(tree) is tree.flat


def test_unflatten_restores_names_and_shapes():
    for tree in (PLAIN, flatten(PLAIN)):
        again = unflatten(flat_vector(tree) + 1, tree)
        assert_same(again, {name: leaf + 1 for name, leaf in PLAIN.items()})
        assert isinstance(again, FlatParams) == isinstance(tree, FlatParams)


def objective(params):
    """Return a function with a different derivative for every weight."""
    return (params["w"] ** 3).sum() + (params["s"] * params["b"].prod()).sum()


def expected_gradient(params):
    return {
        "w": 3 * params["w"] ** 2,
        "b": params["s"] * params["b"].flip(-1),
        "s": params["b"].prod().reshape(1),
    }


def test_grad_differentiates_every_leaf():
    assert_same(grad(objective)(flatten(PLAIN)), expected_gradient(PLAIN))


def test_vmap_maps_the_leading_axis_of_every_leaf():
    tree = flatten(stacked(), leading=1)
    mapped = vmap(grad(objective))(tree)
    for k in range(3):
        assert_same(trees.index(mapped, k), expected_gradient(trees.index(stacked(), k)))
    assert_same(vmap(lambda one: trees.add(one, one))(tree), trees.add(stacked(), stacked()))


def test_transform_returns_flat_weights_as_leaves():
    result = vmap(lambda one: flatten(trees.add(one, one)))(stacked())
    assert_same(result, trees.add(stacked(), stacked()))


UNARY = {
    "torch.neg": torch.neg,
    "double": lambda leaf: leaf.double(),
    "first row": lambda leaf: leaf[0],
    "mean over rows": lambda leaf: leaf.mean(0),
    "repeated": lambda leaf: leaf.expand(2, *leaf.shape),
}


@pytest.mark.parametrize("function", UNARY.values(), ids=UNARY)
def test_map_numbers_equals_map_leaves_for_elementwise_functions(function):
    for tree in (stacked(), flatten(stacked(), leading=1)):
        numbers = trees.map_numbers(function, {"inner": [tree, torch.ones(3, 1)]})
        leaves = trees.map_leaves(function, {"inner": [tree, torch.ones(3, 1)]})
        assert_same(numbers["inner"][0], leaves["inner"][0])
        assert torch.equal(numbers["inner"][1], leaves["inner"][1])
        assert isinstance(numbers["inner"][0], FlatParams) == isinstance(tree, FlatParams)


@pytest.mark.parametrize("left", ["flat", "plain"])
@pytest.mark.parametrize("right", ["flat", "plain"])
def test_flat_and_plain_trees_can_be_combined(left, right):
    kinds = {"flat": flatten(stacked(), leading=1), "plain": stacked()}
    total = trees.add(kinds[left], trees.map_numbers(lambda leaf: 2 * leaf, kinds[right]))
    assert_same(total, {name: 3 * leaf for name, leaf in stacked().items()})
    assert isinstance(total, FlatParams) == (left == right == "flat")


def test_flat_trees_with_another_order_are_matched_by_name():
    reverse = flatten(dict(reversed(PLAIN.items())))
    assert_same(trees.add(flatten(PLAIN), reverse), trees.add(PLAIN, PLAIN))


@pytest.mark.parametrize(
    "function", [trees.mean, lambda tree: trees.index(tree, 1), lambda tree: trees.stack([tree] * 2)]
)
def test_stack_index_and_mean_keep_the_leaves(function):
    assert_same(function(flatten(stacked(), leading=1)), function(stacked()))


def test_masks_and_conditions_apply_to_rows():
    kept = torch.tensor([True, False, True])
    tree = flatten(stacked(), leading=1)
    assert_same(trees.mask(kept, tree), trees.mask(kept, stacked()))
    assert_same(
        trees.where(kept, tree, trees.add(tree, tree)), trees.where(kept, stacked(), trees.add(stacked(), stacked()))
    )
    weights = torch.tensor([1.0, -1.0, 0.5])
    assert_same(trees.combine(weights, tree), trees.combine(weights, stacked()))
