import pytest
import torch
from torch.testing import assert_close

from pogm.pareto import gramian

H = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, -1.0, 1.0, 0.5], [2.0, 0.0, 0.0, 1.0]], dtype=torch.float64)


def test_matrix_gives_inner_products_of_its_rows():
    assert_close(gramian(H), H @ H.mT)


def test_trailing_axes_are_flattened():
    assert_close(gramian(H.reshape(3, 2, 2)), H @ H.mT)


def test_stacked_leaves_are_summed():
    assert_close(gramian({"a": H[:, :1], "b": H[:, 1:].reshape(3, 3, 1)}), H @ H.mT)


def test_leaf_can_be_one_number_per_domain():
    assert_close(gramian({"a": H[:, 0], "b": H[:, 1:]}), H @ H.mT)


@pytest.mark.parametrize(
    "split",
    [
        lambda row: row,
        lambda row: (row[:2], row[2:].reshape(1, 2)),
        lambda row: {"a": row[:1], "b": row[1:]},
        lambda row: {"a": [row[:1], row[1:2]], "b": row[2:]},
    ],
)
def test_sequence_holds_one_tree_per_domain(split):
    assert_close(gramian([split(row) for row in H]), H @ H.mT)


def test_tuples_of_autograd_are_trees():
    weights = (torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True))
    gradients = [torch.autograd.grad(k * weights[0].sum() + weights[1].prod(), weights) for k in (1.0, 2.0)]
    assert_close(gramian(gradients), torch.tensor([[5.0, 7.0], [7.0, 11.0]], dtype=torch.float64))


def test_float32_updates_are_multiplied_in_float64():
    rows = torch.tensor([[1e6, 1.0], [1e6, -1.0]], dtype=torch.float32)
    G = gramian(rows)
    assert G.dtype == torch.float64
    assert G[0, 0] - G[0, 1] == 2.0  # 1e12 + 1 and 1e12 - 1: float32 sees no difference


def test_half_precision_does_not_overflow():
    assert_close(gramian(torch.full((2, 3), 6e4, dtype=torch.float16)), torch.full((2, 2), 3 * 6e4**2).double())


def test_gramian_works_under_vmap():
    batch = torch.randn(5, 3, 4, dtype=torch.float64)
    assert_close(torch.func.vmap(lambda h: gramian({"w": h}))(batch), batch @ batch.mT)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"a": torch.ones(3, 2), "b": torch.ones(2, 2)}, r"same number of updates.*3 in the first and 2"),
        ([{"a": torch.ones(2)}, {"b": torch.ones(2)}], "same leaves"),
        ([torch.ones(2), torch.ones(3)], r"one shape.*\(2,\), \(3,\)"),
        ({"a": torch.tensor(1.0)}, "scalar"),
        ({}, "at least one"),
        ([], "at least one"),
    ],
)
def test_inconsistent_updates_raise(updates, message):
    with pytest.raises(ValueError, match=message):
        gramian(updates)


@pytest.mark.parametrize("updates", [3.0, "abc", [1.0, 2.0]])
def test_values_that_are_not_tensors_raise(updates):
    with pytest.raises(TypeError, match="expected a tensor"):
        gramian(updates)
