"""IMTL-G: equal projections onto all trajectories."""

import torch
from rounds import one_round, trajectories
from torch.testing import assert_close
from torchjd.aggregation import IMTLGWeighting

from pogm.algorithms.imtlg import IMTLG
from pogm.pareto.weightings import config_weights, imtlg_weights


def updates(K, dimension, seed=0):
    return torch.randn(K, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_round_equals_the_closed_form_of_the_paper():
    """The weights after the first are h_1 Uᵀ (D Uᵀ)⁻¹, with D = h_1 − h_j and U = ĥ_1 − ĥ_j; the sum is 1."""
    method = IMTLG(meta_lr=1.0, inner_steps=2)
    before, after, metrics = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    units = flat / flat.norm(dim=1, keepdim=True)
    D, U = flat[0] - flat[1:], units[0] - units[1:]
    others = torch.linalg.solve(U @ D.T, U @ flat[0])
    weights = torch.cat([1 - others.sum().reshape(1), others])
    assert_close(metrics["weights"], weights, rtol=1e-6, atol=1e-8)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    assert_close(units @ moved, (units @ moved)[:1].expand(len(flat)))


def test_weights_equal_those_of_torchjd():
    for seed in range(5):
        G = updates(4, 7, seed) @ updates(4, 7, seed).T
        assert_close(imtlg_weights(G), IMTLGWeighting()(G))


def test_direction_is_that_of_config_up_to_the_sign():
    for seed in range(5):
        H = updates(4, 7, seed)
        cosine = torch.cosine_similarity(imtlg_weights(H @ H.T) @ H, config_weights(H @ H.T) @ H, dim=0)
        assert_close(cosine.abs(), torch.ones_like(cosine))


def test_updates_without_equal_projections_have_no_weight():
    """The sum of C⁻¹1 / ‖h_i‖ is zero for opposite updates of equal length."""
    H = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert imtlg_weights(H @ H.T).tolist() == [0, 0]
