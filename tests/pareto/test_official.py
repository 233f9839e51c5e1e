import pytest
import torch
from pareto_inputs import double, draw, gram
from torch.testing import assert_close

from pogm.pareto import official_weights


@pytest.mark.parametrize(
    ("H", "mixture", "direction"),
    [
        ([[1, 0], [-0.5, 0.5]], [0.000064, 0.999936], [0.099997, 0.300016]),
        (
            [[1, 2, 0], [0, 1, -1], [2, -1, 1]],
            [0.000298, 0.794352, 0.205350],
            [1.012564, 0.838268, -0.304626],
        ),
    ],
)
def test_known_values_of_the_authors_code(H, mixture, direction):
    p, c = official_weights(gram(double(H)), 0.5)
    assert_close(p, torch.tensor(mixture, dtype=torch.float64), atol=2e-6, rtol=0)
    assert_close(c @ double(H), torch.tensor(direction, dtype=torch.float64), atol=2e-6, rtol=0)


def with_autograd(G, kappa):
    """Compute mixture and weights by torch.optim.SGD on the logits."""
    K = len(G)
    G = G / (G.diagonal() + 1e-4).sqrt().mean() ** 2
    logits = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=50 if K == 50 else 25, momentum=0.5)
    ball = kappa * (G.mean() + 1e-4).sqrt()
    best, lowest = None, float("inf")
    for step in range(21):
        optimizer.zero_grad()
        p = logits.softmax(0)
        value = p @ G.mean(1) + ball * (p @ G @ p + 1e-4).sqrt()
        if value.item() < lowest:
            best, lowest = p.detach(), value.item()
        if step < 20:
            value.backward()
            optimizer.step()
    c = 1 / K + ball / ((best @ G @ best + 1e-4).sqrt() + 1e-4) * best
    return best, c / (1 + kappa**2)


@pytest.mark.parametrize("K", [2, 3, 50])
def test_solver_is_gradient_descent_with_momentum(K):
    G = 0.1 * gram(draw("agreeing", K, 100, seed=0)) / 100
    for ours, theirs in zip(official_weights(G, 0.5), with_autograd(G, 0.5), strict=True):
        assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("K", [2, 3])
def test_mean_as_explicit_centre_gives_the_same_mixture(K):
    """The weights are added to the centre, which is not rescaled."""
    H = 0.1 * draw("agreeing", K, 100, seed=0) / 10
    G, h_0 = gram(H), H.mean(-2)
    p, c = official_weights(G, 0.5)
    other, added = official_weights(G, 0.5, centre=(H @ h_0, h_0 @ h_0))
    assert_close(other, p, atol=1e-9, rtol=0)
    assert_close(added, c - 1 / (K * 1.25))


def test_short_updates_have_an_almost_uniform_mixture():
    H = 1e-4 * double([[1, 0], [-0.5, 0.5]])
    p, _ = official_weights(gram(H), 0.5)
    assert_close(p, torch.tensor([0.5, 0.5]).double(), atol=0.05, rtol=0)


def test_vmap_equals_a_loop_with_different_kappa():
    G = gram(draw("agreeing", 3, 6, seed=2, count=4))
    kappa = torch.tensor([0.05, 0.1, 0.5, 0.5], dtype=torch.float64)
    mapped = torch.func.vmap(official_weights)(G, kappa)
    for mode in (mapped, official_weights(G, kappa)):
        for i in range(4):
            for batched, single in zip(mode, official_weights(G[i], kappa[i].item()), strict=True):
                assert_close(batched[i], single, atol=1e-9, rtol=0)


def test_negative_kappa_raises():
    with pytest.raises(ValueError, match="expected a relative radius"):
        official_weights(torch.eye(2), -1.0)
