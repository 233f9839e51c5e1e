"""Optimizers as pure functions."""

import pytest
import torch
from support import assert_close
from torch.func import vmap

from pogm.core import optimizers
from pogm.core.flat_params import flatten
from pogm.core.optimizers import SGD, Adam, AdamW, apply_reset, mark_for_reset

SMOOTH = Adam(0.1, eps=1.0)  # with a large eps, the update depends on the length of the gradient


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(0.01, 0.1), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        (Adam(0.01, 0.0, 0.5, 0.9), lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9))),
        (AdamW(0.01, 0.1), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        (SGD(0.1, 0.01), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
        (SGD(0.1, 0.01, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, momentum=0.9)),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_update_equals_that_of_torch(ours, theirs, large, monkeypatch):
    if large:  # the fused kernel, in chunks
        monkeypatch.setattr(optimizers, "LARGE", 1)
        monkeypatch.setattr(optimizers, "CHUNK", 3)
    torch.manual_seed(0)
    params = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
    leaves = [leaf.clone().requires_grad_() for leaf in params.values()]
    optimizer, state = theirs(leaves), ours.init(params)
    for _ in range(25):
        gradient = {name: torch.randn_like(leaf) for name, leaf in params.items()}
        params, state = ours.update(params, gradient, state)
        for leaf, value in zip(leaves, gradient.values(), strict=True):
            leaf.grad = value.clone()
        optimizer.step()
    for leaf, mine in zip(leaves, params.values(), strict=True):
        torch.testing.assert_close(mine, leaf.detach(), rtol=1e-12, atol=1e-12)


def test_chunked_update_equals_plain_update_and_changes_nothing_in_place(monkeypatch):
    torch.manual_seed(0)
    params, gradient = (flatten({"a": torch.randn(5), "b": torch.randn(70)}) for _ in range(2))
    rates = (torch.tensor(0.01, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64))
    plain = Adam(*rates).update(params, gradient, Adam(0.0).init(params))
    before = params.flat.clone(), gradient.flat.clone()
    monkeypatch.setattr(optimizers, "LARGE", 1)
    monkeypatch.setattr(optimizers, "CHUNK", 16)
    state = Adam(0.0).init(params)
    assert_close(Adam(*rates).update(params, gradient, state), plain, 1e-6)
    strided = torch.stack([gradient.flat, gradient.flat], -1)[:, 0]
    for other in (strided, gradient.flat.double()):
        assert_close(Adam(*rates).update(params, params.like(other), state), plain, 1e-6)
    assert torch.equal(params.flat, before[0])
    assert torch.equal(gradient.flat, before[1])
    assert all((leaf == 0).all() for leaf in state.values())


def test_update_in_place_overwrites_the_moments_with_the_same_bits(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    monkeypatch.setattr(optimizers, "CHUNK", 16)
    torch.manual_seed(0)
    params, gradient = (flatten({"a": torch.randn(5), "b": torch.randn(70)}) for _ in range(2))
    weights = params.flat.clone()
    state = {"mean": torch.randn(75), "square": torch.rand(75), "count": torch.tensor(3.0, dtype=torch.float64)}
    expected = Adam(0.01, 0.1).update(params, gradient, state)
    found = Adam(0.01, 0.1, in_place=True).update(params, gradient, state)
    assert_close(found, expected, 0.0)
    assert found[1]["mean"] is state["mean"]
    assert found[1]["square"] is state["square"]
    assert torch.equal(params.flat, weights)
    assert not Adam(torch.ones(75)).can_overwrite(params)  # parameter groups need the other path


def test_update_of_many_weights_is_differentiable_by_the_gradient(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    gradient = torch.linspace(1, 2, 4, dtype=torch.float64, requires_grad=True)

    def update(gradient):
        params = {"a": torch.ones(4, dtype=torch.float64)}
        return SMOOTH.update(params, {"a": gradient}, SMOOTH.init(params))[0]["a"]

    assert torch.autograd.gradcheck(update, gradient)


def test_update_of_many_weights_is_differentiable_by_the_rate(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    rate, params = torch.tensor(0.1, requires_grad=True), {"a": torch.ones(4)}
    moved, _ = Adam(rate).update(params, params, Adam(rate).init(params))
    assert torch.autograd.grad(moved["a"].sum(), rate)[0].item() == pytest.approx(-4)


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_trials_with_different_learning_rates_can_be_batched(kind):
    params = {"a": torch.ones(2, 3)}
    gradient = {"a": torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])}
    rates = torch.tensor([0.1, 0.2])

    def update(params, gradient, lr):
        return kind(lr, 0.01 * lr).update(params, gradient, kind(lr).init(params))[0]

    batched = vmap(update)(params, gradient, rates)["a"]
    for row, lr in enumerate([0.1, 0.2]):
        one = update({"a": params["a"][row]}, {"a": gradient["a"][row]}, lr)["a"]
        torch.testing.assert_close(batched[row], one)


def test_state_marked_for_reset_is_zero_when_it_is_used():
    kept = torch.tensor([True, False])
    state = {"mean": torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]]), "count": torch.tensor([3.0, 4.0])}
    used = apply_reset(mark_for_reset(state, kept))
    assert used["mean"].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert used["count"].tolist() == [3.0, 0.0]


def test_initial_state_is_zero():
    """POGM resets a state by setting it to zero."""
    params = {"a": torch.ones(3)}
    for optimizer in (Adam(0.1), SGD(0.1)):
        assert all((leaf == 0).all() for leaf in optimizer.init(params).values())


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1), Adam(0.1, 0.01)])
def test_gradient_is_matched_by_name_and_not_by_position(optimizer):
    params = {"a": torch.zeros(2), "b": torch.zeros(2)}
    gradient = {"b": torch.ones(2), "a": torch.zeros(2)}
    moved, _ = optimizer.update(params, gradient, optimizer.init(params))
    assert moved["a"].tolist() == [0.0, 0.0]
    assert (moved["b"] < 0).all()


@pytest.mark.parametrize("optimizer", [Adam, AdamW, SGD])
@pytest.mark.parametrize("large", [False, True])
def test_vector_of_learning_rates_equals_parameter_groups_of_torch(optimizer, large, monkeypatch):
    if large:  # the fused kernel takes no vectors
        monkeypatch.setattr(optimizers, "LARGE", 1)
    torch.manual_seed(0)
    params = {"a": torch.randn(3, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    leaves = [leaf.clone().requires_grad_() for leaf in params.values()]
    groups = [{"params": [leaves[0]], "lr": 0.1, "weight_decay": 0.0}, {"params": [leaves[1]], "weight_decay": 0.2}]
    theirs = getattr(torch.optim, optimizer.__name__)(groups, lr=0.01)
    rates, decays = [0.1] * 3 + [0.01] * 2, [0.0] * 3 + [0.2] * 2
    ours = optimizer(torch.tensor(rates, dtype=torch.float64), torch.tensor(decays, dtype=torch.float64))
    state = ours.init(params)
    for _ in range(5):
        gradient = {name: torch.randn_like(leaf) for name, leaf in params.items()}
        params, state = ours.update(params, gradient, state)
        for leaf, value in zip(leaves, gradient.values(), strict=True):
            leaf.grad = value
        theirs.step()
    for leaf, mine in zip(leaves, params.values(), strict=True):
        torch.testing.assert_close(mine, leaf.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 100.0])
def test_clipping_equals_that_of_torch(scale):
    torch.manual_seed(0)
    params, gradient = ({"a": torch.randn(3), "b": torch.randn(2)} for _ in range(2))
    gradient = {name: scale * leaf for name, leaf in gradient.items()}
    leaves = [leaf.clone().requires_grad_() for leaf in params.values()]
    for leaf, value in zip(leaves, gradient.values(), strict=True):
        leaf.grad = value.clone()
    torch.nn.utils.clip_grad_norm_(leaves, 1.0)
    torch.optim.SGD(leaves, lr=0.1).step()
    ours = SGD(0.1, clip_norm=1.0)
    for leaf, mine in zip(leaves, ours.update(params, gradient, ours.init(params))[0].values(), strict=True):
        torch.testing.assert_close(mine, leaf.detach())
