"""EQRM."""

import math
from statistics import NormalDist

import pytest
import torch
from support import K, batches, toy

from pogm import ERM
from pogm.algorithms.eqrm import EQRM, smoothed_quantile
from pogm.core.batch import Batch

RISKS = [[0.3, 1.1, 0.7], [0.1, 2.0], [5.0, 0.2, 0.21, 0.22, 0.2]]
ALPHAS = [0.5, 0.75, 0.99]


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def bandwidth(risks):
    mean = sum(risks) / len(risks)
    return 1.06 * math.sqrt(sum((r - mean) ** 2 for r in risks) / (len(risks) - 1)) * len(risks) ** -0.2


def below(q, risks):
    """Return F(q), computed term by term."""
    return sum(NormalDist(r, bandwidth(risks)).cdf(q) for r in risks) / len(risks)


def halved(risks, alpha):
    """Return the quantile by the 32 bisections of DomainBed."""
    low, high = (NormalDist(r, bandwidth(risks)).inv_cdf(alpha) for r in (min(risks), max(risks)))
    for _ in range(32):
        middle = (low + high) / 2
        low, high = (low, middle) if below(middle, risks) > alpha else (middle, high)
    return (low + high) / 2


def slopes(risks, alpha, through):
    leaf = numbers(risks).requires_grad_()
    return torch.autograd.grad(smoothed_quantile(leaf, alpha, through), leaf)[0]


@pytest.mark.parametrize("risks", RISKS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantile_has_smoothed_distribution_function_alpha(risks, alpha):
    found = smoothed_quantile(numbers(risks), alpha).item()
    assert below(found, risks) == pytest.approx(alpha, abs=1e-12)
    assert found == pytest.approx(halved(risks, alpha), abs=1e-8)


@pytest.mark.parametrize("risks", RISKS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_equals_finite_differences(risks, alpha):
    found = slopes(risks, alpha, "quantile")
    for k in range(len(risks)):
        near = [
            smoothed_quantile(numbers([r + side * (j == k) for j, r in enumerate(risks)]), alpha)
            for side in (1e-5, -1e-5)
        ]
        torch.testing.assert_close(found[k], (near[0] - near[1]) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("risks", RISKS)
def test_gradient_equals_the_implicit_formula(risks):
    """Compare with dQ = sum w_k dR_k + (sum w_k zeta_k) db with weights w_k from the density of each kernel at Q."""
    q, b = halved(risks, 0.75), bandwidth(risks)
    zeta = [(q - r) / b for r in risks]
    density = [NormalDist().pdf(z) for z in zeta]
    weights = [d / sum(density) for d in density]
    mean = sum(risks) / len(risks)
    by_width = sum(w * z for w, z in zip(weights, zeta, strict=True))
    width = [1.06**2 * len(risks) ** -0.4 * (r - mean) / ((len(risks) - 1) * b) for r in risks]  # db / dR_k
    expected = numbers([w + by_width * d for w, d in zip(weights, width, strict=True)])
    torch.testing.assert_close(slopes(risks, 0.75, "quantile"), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("through", ["quantile", "ends"])
@pytest.mark.parametrize("risks", RISKS)
def test_shifting_all_risks_shifts_the_quantile(through, risks):
    assert slopes(risks, 0.9, through).sum().item() == pytest.approx(1)


def test_gradient_through_ends_depends_on_best_worst_and_bandwidth():
    """The formula is that of DomainBed: Q = (1 - s) R_min + s R_max + b probit(alpha), with s constant."""
    risks, alpha = [0.3, 1.1, 0.8, 0.7], 0.9
    probit, b, mean = NormalDist().inv_cdf(alpha), bandwidth(risks), sum(risks) / 4
    share = (halved(risks, alpha) - b * probit - 0.3) / (1.1 - 0.3)
    width = [1.06**2 * 4**-0.4 * (r - mean) / (3 * b) for r in risks]
    expected = numbers([1 - share, share, 0, 0]) + probit * numbers(width)
    torch.testing.assert_close(slopes(risks, alpha, "ends"), expected, rtol=1e-7, atol=1e-8)
    assert smoothed_quantile(numbers(risks), alpha, "ends").item() == pytest.approx(halved(risks, alpha), abs=1e-8)
    middle = slopes(risks, 0.5, "ends")  # probit(1/2) = 0
    torch.testing.assert_close(middle[2:], numbers([0, 0]))


def test_median_of_symmetric_risks_is_the_mean():
    assert smoothed_quantile(numbers([1.0, 2.0, 4.0, 5.0]), 0.5).item() == pytest.approx(3, abs=1e-12)


def test_quantile_increases_with_alpha():
    found = [smoothed_quantile(numbers(RISKS[0]), alpha).item() for alpha in (0.1, 0.5, 0.75, 0.9, 0.99)]
    assert found == sorted(found)
    assert found[-1] > max(RISKS[0])


@pytest.mark.parametrize("through", ["quantile", "ends"])
@pytest.mark.parametrize("risks", [[0.7], [0.1, 0.1, 0.1], [0.0, 0.0], [2.0, 2.0 + 4e-16, 2.0]])
def test_quantile_of_one_or_equal_risks_is_the_mean(risks, through):
    leaf = numbers(risks).requires_grad_()
    found = smoothed_quantile(leaf, 0.9, through)
    assert found.item() == pytest.approx(risks[0], rel=1e-15)
    torch.testing.assert_close(torch.autograd.grad(found, leaf)[0], torch.full_like(leaf, 1 / len(risks)))


def test_quantile_keeps_the_dtype_of_the_risks():
    found = smoothed_quantile(torch.tensor(RISKS[0]), 0.75)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(halved(RISKS[0], 0.75), rel=1e-6)


@pytest.mark.parametrize("through", ["quantile", "ends"])
def test_gradient_after_burn_in_is_that_of_the_quantile(through):
    eqrm = EQRM(quantile=0.9, burn_in_anneal_iters=0, through=through)
    state, problem = toy(eqrm)
    (batch,) = batches()
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    risks = problem.model(leaves, state).risks(batch)
    expected = smoothed_quantile(risks, 0.9, through)
    found, loss = eqrm.gradient(state, batch, problem)
    torch.testing.assert_close(list(found.values()), list(torch.autograd.grad(expected, list(leaves.values()))))
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(loss.metrics["nll"], risks.mean().detach())


def test_domainbed_preset_does_not_reset_adam():
    eqrm = EQRM.preset("domainbed", burn_in_anneal_iters=2, later_lr=1e-6)
    state, problem = toy(eqrm)
    moves = []
    for number in range(4):
        after, _ = eqrm.step(state, batches(seed=number), problem)
        moves.append((after.params["head.bias"] - state.params["head.bias"]).abs().max().item())
        state = after
    assert state.optimizer["count"] == 4
    assert min(moves) > 1e-3
    assert eqrm.through == "ends"


def test_one_domain_gives_erm():
    eqrm = EQRM(burn_in_anneal_iters=0)
    state, problem = toy(eqrm, domains=1)
    (batch,) = batches(domains=1)
    found, _ = eqrm.gradient(state, batch, problem)
    expected, _ = ERM().gradient(state, batch, problem)
    torch.testing.assert_close(found, expected)
    assert eqrm.min_domains == 1


def test_equal_domains_train_like_erm():
    eqrm = EQRM(burn_in_anneal_iters=0)
    state, problem = toy(eqrm)
    (batch,) = batches()
    same = Batch(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    found, _ = eqrm.gradient(state, same, problem)
    expected, _ = ERM().gradient(state, same, problem)
    torch.testing.assert_close(found, expected)
    assert len(same.y) == K
