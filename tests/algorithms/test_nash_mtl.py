"""Nash-MTL: the bargaining solution."""

import numpy as np
import torch
from rounds import one_round, trajectories
from scipy.optimize import minimize
from torch.testing import assert_close

from pogm import pareto
from pogm.algorithms.nash_mtl import NashMTL
from pogm.pareto.weightings import nash_mtl_weights


def updates(K, dimension, seed=0):
    return torch.randn(K, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_round_maximises_the_product_of_gains_among_directions_of_its_length():
    """Compare with a general optimizer on the coefficients of the direction."""
    method = NashMTL(meta_lr=1.0, inner_steps=2)
    before, after, metrics = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    G = (flat @ flat.T).numpy() / flat.norm(dim=1).prod().item() ** (2 / len(flat))

    def loss(a):
        return -np.log(G @ a).sum() + 0.5 * len(a) * np.log(a @ G @ a)

    best = torch.from_numpy(minimize(loss, [1.0] * len(flat), method="Nelder-Mead", options={"xatol": 1e-9}).x)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    assert_close(torch.cosine_similarity(best @ flat, moved, dim=0).item(), 1.0, atol=1e-7, rtol=0)
    assert metrics["residual"] < 1e-12


def test_weights_solve_the_equation_up_to_a_factor():
    for seed in range(10):
        H = updates(5, 8, seed)
        G = H @ H.T
        c, residual = nash_mtl_weights(G)
        products = c * (G @ c)
        assert_close(products, products[:1].expand(5))
        assert (c > 0).all()
        assert residual < 1e-12
        assert_close(c.sum().item(), 1.0)


def test_direction_does_not_depend_on_the_lengths_of_the_updates():
    H = updates(4, 6)
    scaled = H * torch.tensor([1e-3, 1.0, 1e3, 20.0], dtype=torch.float64)[:, None]
    one, other = (nash_mtl_weights(rows @ rows.T)[0] @ rows for rows in (H, scaled))
    assert_close(one / one.norm(), other / other.norm())


def test_two_updates_have_equal_shares():
    """a_1 ‖h_1‖ = a_2 ‖h_2‖: the direction bisects the angle."""
    H = updates(2, 3)
    d = nash_mtl_weights(H @ H.T)[0] @ H
    cosines = pareto.cosines(H @ H.T, nash_mtl_weights(H @ H.T)[0])
    assert_close(cosines[0], cosines[1])
    assert_close(d / d.norm(), (bisector := (H / H.norm(dim=1, keepdim=True)).sum(0)) / bisector.norm())


def test_opposite_updates_give_a_step_close_to_zero_and_a_large_residual():
    H = torch.tensor([[1.0, 0.0], [-3.0, 0.0]], dtype=torch.float64)
    c, residual = nash_mtl_weights(H @ H.T)
    assert (c @ H).norm() < 1e-9
    assert residual > 0.1


def test_zero_update_has_all_the_weight():
    H = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert nash_mtl_weights(H @ H.T)[0].tolist() == [0, 1]
