"""Lengths, alignments and cosines of a step."""

import doctest

import torch
from torch.func import vmap
from torch.testing import assert_close

from pogm import pareto

H = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [2.0, -1.0, 1.0]], dtype=torch.float64)
C = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
G = pareto.gramian(H)


def test_measures_equal_those_of_the_vectors():
    step = C @ H
    assert_close(pareto.length(G, C), step.norm())
    assert_close(pareto.alignment(G, C), H @ step)
    assert_close(pareto.cosines(G, C), torch.cosine_similarity(H, step[None]))
    pairs = [torch.cosine_similarity(H[i], H[j], dim=0) for i in range(3) for j in range(3) if i != j]
    assert_close(pareto.agreement(G), torch.stack(pairs).mean())


def test_zero_update_has_no_cosine_and_is_not_in_the_agreement():
    with_zero = pareto.gramian(torch.cat([H, torch.zeros(1, 3, dtype=torch.float64)]))
    weights = torch.cat([C, torch.ones(1, dtype=torch.float64)])
    assert pareto.cosines(with_zero, weights).isnan().tolist() == [False, False, False, True]
    assert_close(pareto.agreement(with_zero), pareto.agreement(G))
    assert pareto.agreement(G[:1, :1]).isnan(), "one update has no pair"


def test_measures_work_with_batches_and_vmap():
    batch, weights = torch.stack([G, 2 * G]), torch.stack([C, C])
    for measure in (pareto.length, pareto.alignment, pareto.cosines):
        assert_close(measure(batch, weights)[1], measure(2 * G, C))
        assert_close(vmap(measure)(batch, weights), measure(batch, weights))
    assert_close(vmap(pareto.agreement)(batch), pareto.agreement(batch))


def test_docstring_example_runs():
    assert doctest.testmod(pareto).failed == 0
    assert doctest.testmod(pareto).attempted > 0
