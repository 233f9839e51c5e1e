"""Position of an update relative to the convex hull of others."""

import torch

from pogm.pareto import gramian
from pogm.pareto.hull import hull_positions


def position(sources: list[list[float]], target: list[float]) -> tuple[float, float]:
    G = gramian(torch.tensor([*sources, target], dtype=torch.float64))
    distance, cosine = hull_positions(G[None], len(sources))[0, 0].tolist()
    return distance, cosine


def test_update_inside_the_hull_has_distance_exactly_0():
    sources = [[1.0, 0.1, 0.3], [0.2, 1.0, 0.7], [0.3, 0.4, 1.0]]
    for weights in ([0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.9, 0.1]):
        target = (torch.tensor(weights, dtype=torch.float64) @ torch.tensor(sources, dtype=torch.float64)).tolist()
        assert position(sources, target)[0] == 0.0


def test_update_outside_the_hull_has_a_known_distance_and_cosine():
    distance, cosine = position([[1.0, 0.0], [0.0, 1.0]], [2.0, 2.0])  # nearest point (0.5, 0.5)
    assert abs(distance - 1.5 / 2.0) < 1e-9
    assert abs(cosine - 1.0) < 1e-9
