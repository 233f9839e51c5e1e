"""ConFIG: the direction with equal cosines."""

import torch
from rounds import one_round, trajectories
from torch.testing import assert_close
from torchjd.aggregation import ConFIG as TheirConFIG

from pogm.algorithms.con_fig import ConFIG
from pogm.pareto.weightings import config_weights


def updates(K, dimension, seed=0):
    return torch.randn(K, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_round_has_the_same_positive_cosine_with_all_trajectories_and_the_mean_projection_as_length():
    method = ConFIG(meta_lr=1.0, inner_steps=2)
    before, after, _ = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    units = flat / flat.norm(dim=1, keepdim=True)
    direction = torch.linalg.pinv(units) @ torch.ones(len(flat), dtype=torch.float64)
    direction = direction / direction.norm()
    assert_close(moved, (flat @ direction).mean() * direction, rtol=1e-8, atol=1e-10)
    cosines = torch.cosine_similarity(flat, moved[None])
    assert_close(cosines, cosines[:1].expand_as(cosines))
    assert cosines[0] > 0


def test_it_is_torchjd_divided_by_k():
    for seed in range(5):
        H = updates(4, 7, seed)
        assert_close(4 * config_weights(H @ H.T) @ H, TheirConFIG()(H))


def test_dependent_updates_have_the_direction_of_the_pseudoinverse():
    H = updates(4, 2)
    assert_close(4 * config_weights(H @ H.T) @ H, TheirConFIG()(H))


def test_opposite_and_zero_updates_have_no_weight():
    opposite = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    assert config_weights(opposite @ opposite.T).tolist() == [0, 0]
    H = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert_close(config_weights(H @ H.T) @ H, 0.5 * H[0])
