"""Optimizers as pure functions."""

import pytest
import torch
from support import assert_close
from torch.func import vmap

from pogm.core import optimizers
from pogm.core.flat_params import flatten
from pogm.core.optimizers import SGD, Adam, apply_reset, mark_for_reset

SECOND = Adam(0.1, eps=1.0)  # which does not divide its gradient away


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(0.01, 0.1), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        (Adam(0.01, 0.0, 0.5, 0.9), lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9))),
        (SGD(0.1, 0.01), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_an_update_is_that_of_torch(ours, theirs, large, monkeypatch):
    if large:  # on a CPU, part by part
        monkeypatch.setattr(optimizers, "LARGE", 1)
        monkeypatch.setattr(optimizers, "PART", 3)
    torch.manual_seed(0)
    params = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
    leaves = [leaf.clone().requires_grad_() for leaf in params.values()]
    optimizer, state = theirs(leaves), ours.init(params)
    for _ in range(25):
        gradient = {name: torch.randn_like(leaf) for name, leaf in params.items()}
        params, state = ours.update(params, gradient, state)
        for leaf, slope in zip(leaves, gradient.values(), strict=True):
            leaf.grad = slope.clone()
        optimizer.step()
    for leaf, mine in zip(leaves, params.values(), strict=True):
        torch.testing.assert_close(mine, leaf.detach(), rtol=1e-12, atol=1e-12)


def test_many_weights_are_updated_as_few_are_and_nothing_is_changed_in_place(monkeypatch):
    torch.manual_seed(0)
    params, slope = (flatten({"a": torch.randn(5), "b": torch.randn(70)}) for _ in range(2))
    rates = (torch.tensor(0.01, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64))
    few = Adam(*rates).update(params, slope, Adam(0.0).init(params))
    before = params.flat.clone(), slope.flat.clone()
    monkeypatch.setattr(optimizers, "LARGE", 1)
    monkeypatch.setattr(optimizers, "PART", 16)
    state = Adam(0.0).init(params)
    assert_close(Adam(*rates).update(params, slope, state), few, 1e-6)
    strided = torch.stack([slope.flat, slope.flat], -1)[:, 0]
    for other in (strided, slope.flat.double()):
        assert_close(Adam(*rates).update(params, params.like(other), state), few, 1e-6)
    assert torch.equal(params.flat, before[0])
    assert torch.equal(slope.flat, before[1])
    assert all((leaf == 0).all() for leaf in state.values())


def test_an_update_of_many_weights_can_be_differentiated(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    slope = torch.linspace(1, 2, 4, dtype=torch.float64, requires_grad=True)

    def moved(slope):
        params = {"a": torch.ones(4, dtype=torch.float64)}
        return SECOND.update(params, {"a": slope}, SECOND.init(params))[0]["a"]

    assert torch.autograd.gradcheck(moved, slope)


def test_a_rate_of_many_weights_can_be_differentiated(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    rate, params = torch.tensor(0.1, requires_grad=True), {"a": torch.ones(4)}
    moved, _ = Adam(rate).update(params, params, Adam(rate).init(params))
    assert torch.autograd.grad(moved["a"].sum(), rate)[0].item() == pytest.approx(-4)


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_learning_rates_can_be_a_batch(kind):
    params = {"a": torch.ones(2, 3)}
    gradient = {"a": torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])}
    rates = torch.tensor([0.1, 0.2])

    def update(params, gradient, lr):
        return kind(lr, 0.01 * lr).update(params, gradient, kind(lr).init(params))[0]

    together = vmap(update)(params, gradient, rates)["a"]
    for row, lr in enumerate([0.1, 0.2]):
        one = update({"a": params["a"][row]}, {"a": gradient["a"][row]}, lr)["a"]
        torch.testing.assert_close(together[row], one)


def test_a_state_that_was_forgotten_is_a_fresh_one_when_it_is_used():
    kept = torch.tensor([True, False])
    state = {"mean": torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]]), "count": torch.tensor([3.0, 4.0])}
    used = apply_reset(mark_for_reset(state, kept))
    assert used["mean"].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert used["count"].tolist() == [3.0, 0.0]


def test_a_fresh_state_is_all_zeros():
    """POGM begins a state anew by filling it with zeros."""
    params = {"a": torch.ones(3)}
    for optimizer in (Adam(0.1), SGD(0.1)):
        assert all((leaf == 0).all() for leaf in optimizer.init(params).values())


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1), Adam(0.1, 0.01)])
def test_a_gradient_is_matched_by_name_and_not_by_place(optimizer):
    params = {"a": torch.zeros(2), "b": torch.zeros(2)}
    slope = {"b": torch.ones(2), "a": torch.zeros(2)}
    moved, _ = optimizer.update(params, slope, optimizer.init(params))
    assert moved["a"].tolist() == [0.0, 0.0]
    assert (moved["b"] < 0).all()
