"""Variants of POGM: every equation recomputed naively on a tiny problem, and the contract of algorithms."""

from functools import partial

import pytest
import torch
from support import K, batches, steps, toy
from torch import Tensor
from torch.func import grad

from pogm import ERM, POGM, Fish
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.plan.trial import Trial
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.optimizers import Adam
from pogm.core.state import State
from pogm.experiments import variant_methods
from pogm.experiments.variant_methods import (
    ConflictPOGM,
    CrossBatchPOGM,
    FishCentrePOGM,
    MatchedLength,
    NesterovPOGM,
    OuterAdamPOGM,
    SharedMomentPOGM,
)
from pogm.pareto import solve
from pogm.testing import ALGORITHM_GPU_CHECKS, check_batched_trials, check_loop_and_vmap, check_resume, make_trial

LR, ROUNDS = 0.05, 3
VARIANTS = (
    SharedMomentPOGM,
    NesterovPOGM,
    OuterAdamPOGM,
    CrossBatchPOGM,
    ConflictPOGM,
    FishCentrePOGM,
    MatchedLength,
)
CHECKS = (
    partial(check_batched_trials, networks=["mlp"]),
    check_loop_and_vmap,
    check_resume,
    *(ALGORITHM_GPU_CHECKS if torch.cuda.is_available() else ()),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: getattr(check, "func", check).__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_keeps_the_contract_of_an_algorithm(variant, check):
    check(variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_is_found_by_its_path_and_is_not_registered(variant):
    assert variant.__name__ not in all_algorithms()
    path = f"{variant_methods.__name__}:{variant.__name__}"
    assert algorithm_class(path) is variant
    saved = make_trial(variant()).to_json()
    assert saved["algorithm"]["name"] == path
    assert Trial.from_json(saved).algorithm == variant()


def vector(params) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in params.values()])


def risk(params, problem, state, batch, domains) -> Tensor:
    chosen = Batch(batch.x[domains], batch.y[domains])
    return problem.model(params, state).losses(chosen).mean()


class Naive:
    """The tiny problem with all weights as one vector."""

    def __init__(self, method):
        self.state, self.problem = toy(method, lr=LR)
        self.shapes = {name: leaf.shape for name, leaf in self.state.params.items()}
        self.theta = vector(self.state.params)

    def gradient(self, theta, batch, domains) -> Tensor:
        pieces = torch.split(theta, [shape.numel() for shape in self.shapes.values()])
        params = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        return vector(grad(risk)(params, self.problem, self.state, batch, domains))

    def descend(self, theta, batch, domains) -> Tensor:
        return theta - LR * self.gradient(theta, batch, domains)

    def step(self, method, number) -> tuple[Tensor, dict]:
        """Take a real step, and return the new weights and the metrics."""
        self.state, metrics = method.step(self.state, made(method, number), self.problem)
        return vector(self.state.params), metrics


def made(method, number) -> list[Batch]:
    return batches(method.minibatches, seed=number)


ALL = slice(None)


def in_ball(centre, h, mixture, kappa) -> Tensor:
    mixed = mixture @ h
    return centre + kappa * centre.norm() * mixed / mixed.norm()


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_copies_share_the_second_moment_and_start_without_a_first_moment(inner_steps):
    pogm = SharedMomentPOGM(kappa=0.3, inner_steps=inner_steps, centre="mean", meta_lr=0.5)
    naive = Naive(pogm)
    theta, shared, count = naive.theta, torch.zeros_like(naive.theta), 0
    for number in range(ROUNDS):
        after, metrics = naive.step(pogm, number)
        h, squares = [], []
        for domain in range(K):
            copy, m, v = theta, torch.zeros_like(theta), shared
            for t, batch in enumerate(made(pogm, number)):
                g = naive.gradient(copy, batch, [domain])
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                root = (v / (1 - 0.999 ** (count + t + 1))).sqrt()
                copy = copy - LR * m / (1 - 0.9 ** (t + 1)) / (root + 1e-8)
            h.append(copy - theta)
            squares.append(v)
        rows = torch.stack(h)
        theta = theta + 0.5 * in_ball(rows.mean(0), rows, metrics["mixture"], 0.3)
        shared, count = torch.stack(squares).mean(0), count + inner_steps
        torch.testing.assert_close(after, theta, rtol=1e-9, atol=1e-12)


def test_shared_second_moment_leaves_the_erm_centre_unchanged():
    """With κ = 0 it is ERM."""
    torch.testing.assert_close(
        vector(steps(SharedMomentPOGM(kappa=0.0), 4).params), vector(steps(ERM(), 4).params), rtol=1e-9, atol=1e-12
    )


def test_trajectory_that_is_not_finite_does_not_spoil_the_shared_moment():
    pogm = SharedMomentPOGM(centre="mean")
    naive = Naive(pogm)
    naive.step(pogm, 0)
    (bad,) = made(pogm, 1)
    bad.x[0] = torch.nan
    naive.state, metrics = pogm.step(naive.state, [bad], naive.problem)
    assert metrics["skipped"] == 1
    after, metrics = naive.step(pogm, 2)
    assert metrics["skipped"] == 0
    assert after.isfinite().all()


def test_outer_step_is_nesterov_momentum_on_the_direction():
    pogm = NesterovPOGM(kappa=0.3, inner_optimizer="sgd")
    naive = Naive(pogm)
    theta, momentum = naive.theta, torch.zeros_like(naive.theta)
    for number in range(ROUNDS):
        after, metrics = naive.step(pogm, number)
        (batch,) = made(pogm, number)
        h = torch.stack([naive.descend(theta, batch, [k]) - theta for k in range(K)])
        d = in_ball(h.mean(0), h, metrics["mixture"], 0.3)
        momentum = 0.9 * momentum + d
        theta = theta + 0.7 * (d + 0.9 * momentum)
        torch.testing.assert_close(after, theta, rtol=1e-9, atol=1e-12)


def test_outer_step_of_nesterov_is_that_of_torch():
    """torch.optim.SGD with nesterov, on −d, for κ = 0."""
    pogm = NesterovPOGM(kappa=0.0, inner_optimizer="sgd")
    naive = Naive(pogm)
    weights = naive.theta.clone().requires_grad_()
    outer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(ROUNDS):
        after, _ = naive.step(pogm, number)
        (batch,) = made(pogm, number)
        weights.grad = LR * naive.gradient(weights.detach(), batch, ALL)
        outer.step()
        torch.testing.assert_close(after, weights.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.3])
def test_outer_adam_gets_the_matched_gradient(kappa):
    pogm = OuterAdamPOGM(kappa=kappa)
    naive = Naive(pogm)
    weights = naive.theta.clone().requires_grad_()
    outer = torch.optim.Adam([weights], lr=LR)
    for number in range(ROUNDS):
        after, metrics = naive.step(pogm, number)
        (batch,) = made(pogm, number)
        theta = weights.detach()
        h = torch.stack([-naive.gradient(theta, batch, [k]) for k in range(K)])
        weights.grad = -in_ball(h.mean(0), h, metrics["mixture"], kappa)
        outer.step()
        torch.testing.assert_close(after, weights.detach(), rtol=1e-9, atol=1e-11)


def halves(pogm, naive, number) -> tuple[Tensor, Tensor, Tensor]:
    """Return a_i, b_i and h_0 of a round with SGD."""
    first, last = [], []
    minibatches = made(pogm, number)
    for domain in range(K):
        middle = naive.theta
        for batch in minibatches[:2]:
            middle = naive.descend(middle, batch, [domain])
        end = middle
        for batch in minibatches[2:]:
            end = naive.descend(end, batch, [domain])
        first.append(middle - naive.theta)
        last.append(end - middle)
    pooled = naive.theta
    for batch in minibatches:
        pooled = naive.descend(pooled, batch, ALL)
    return torch.stack(first), torch.stack(last), pooled - naive.theta


def test_mixture_comes_from_products_of_different_halves_of_a_round():
    pogm = CrossBatchPOGM(kappa=0.5, inner_optimizer="sgd")
    naive = Naive(pogm)
    a, b, centre = halves(pogm, naive, 0)
    after, metrics = naive.step(pogm, 0)
    cross = torch.tensor([[2 * (a[i] @ b[j] + b[i] @ a[j]) for j in range(K)] for i in range(K)])
    values, vectors = torch.linalg.eigh(cross)
    psd = vectors @ torch.diag(values.clamp(min=0)) @ vectors.T
    torch.testing.assert_close(naive.state.memory["cross"], psd, rtol=1e-9, atol=1e-12)

    def dual(mixture) -> Tensor:
        return mixture @ (a + b) @ centre + 0.5 * centre.norm() * (mixture @ psd @ mixture).clamp(min=0).sqrt()

    best = dual(metrics["mixture"])
    samples = torch.distributions.Dirichlet(torch.ones(K, dtype=torch.float64)).sample((2000,))
    assert all(best <= dual(mixture) + 1e-12 for mixture in [*samples, *torch.eye(K, dtype=torch.float64)])
    expected = naive.theta + in_ball(centre, a + b, metrics["mixture"], 0.5)
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)


def test_cross_batch_products_have_no_noise_on_the_diagonal():
    """Halves with the mean μ_i and independent noise: the mean of Ĝ is that without noise, the mean of G is not."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(K, 20, generator=generator, dtype=torch.float64)
    a, b = (mean + torch.randn(4000, K, 20, generator=generator, dtype=torch.float64) for _ in range(2))
    estimated = 2 * (a @ b.mT + b @ a.mT).mean(0)
    true, biased = 4 * mean @ mean.T, ((a + b) @ (a + b).mT).mean(0)
    assert (estimated - true).abs().max() < 2
    assert (biased - true).diagonal().min() > 30  # 2 · 20 coordinates with variance 1


def test_round_in_two_halves_without_a_ball_is_erm():
    pogm = CrossBatchPOGM(kappa=0.0)
    minibatches = made(pogm, 0)
    state, problem = toy(pogm)
    after, _ = pogm.step(state, minibatches, problem)
    reference, erm_problem = toy(ERM())
    for batch in minibatches:
        reference, _ = ERM().step(reference, [batch], erm_problem)
    torch.testing.assert_close(vector(after.params), vector(reference.params), rtol=1e-9, atol=1e-12)


CONFLICT = torch.tensor([[1.0, -0.2], [-0.2, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("gram", "step", "expected"),
    [(CONFLICT, 0, 0.5), (CONFLICT, 10, 0.5), (CONFLICT, 15, 0.25), (CONFLICT, 20, 0.0), (CONFLICT.abs(), 0, 0.0)],
)
def test_radius_is_zero_without_a_conflict_and_decays_after_the_early_phase(gram, step, expected):
    pogm = ConflictPOGM(kappa=0.5, decay_iters=10)
    centre = (gram.mean(0), gram.mean())
    state = State({}, {}, {}, {}, torch.tensor(step), random.key(0))
    found = pogm.direction(gram, centre, state)
    torch.testing.assert_close(found.metrics["radius"], torch.tensor(expected), check_dtype=False)
    torch.testing.assert_close(found.weights, solve(gram, expected, centre=centre).weights)


def test_round_with_a_conflict_is_that_of_pogm():
    (batch,) = batches()
    opposed = Batch(batch.x[[0, 0]], torch.stack([batch.y[0], 3 - batch.y[0]]))
    after = []
    for method in (ConflictPOGM(kappa=0.5), POGM(kappa=0.5)):
        state, problem = toy(method, domains=2)
        state, metrics = method.step(state, [opposed], problem)
        after.append(vector(state.params))
        assert metrics.get("radius", 0.5) == 0.5
    torch.testing.assert_close(*after, rtol=1e-9, atol=1e-12)


def walk(naive, batch, optimizer, params, state) -> tuple:
    """Return the weights after one inner step on each domain in Fish's order, and the optimizer state."""
    order = random.permutation(Fish().random_key(state), K)
    for domain in order.tolist():
        slope = grad(risk)(params, naive.problem, naive.state, batch, [domain])
        params, optimizer = Adam(LR).update(params, slope, optimizer)
    return params, optimizer


def test_centre_is_the_walk_of_fish():
    pogm = FishCentrePOGM(kappa=0.5)
    naive = Naive(pogm)
    start, before = naive.state.params, naive.theta
    inner, own = Adam(LR).init(start), [Adam(LR).init(start) for _ in range(K)]
    (batch,) = made(pogm, 0)
    end, _ = walk(naive, batch, inner, start, naive.state)
    centre = 0.5 * (vector(end) - before)
    h = [
        vector(Adam(LR).update(start, grad(risk)(start, naive.problem, naive.state, batch, [k]), own[k])[0]) - before
        for k in range(K)
    ]
    after, metrics = naive.step(pogm, 0)
    expected = before + in_ball(centre, torch.stack(h), metrics["mixture"], 0.5)
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)


def test_fish_centre_without_a_ball_is_fish():
    torch.testing.assert_close(
        vector(steps(FishCentrePOGM(kappa=0.0), 4).params), vector(steps(Fish(), 4).params), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("along", ["erm", "walk"])
def test_step_has_the_direction_of_one_method_and_the_length_of_the_other(along):
    method = MatchedLength(along=along)
    naive = Naive(method)
    params = naive.state.params
    pooled = inner = Adam(LR).init(params)
    for number in range(ROUNDS):
        (batch,) = made(method, number)
        slope = grad(risk)(params, naive.problem, naive.state, batch, ALL)
        erm, pooled = Adam(LR).update(params, slope, pooled)
        walked, inner = walk(naive, batch, inner, params, naive.state)
        start = vector(params)
        steps = {"erm": vector(erm) - start, "walk": 0.5 * (vector(walked) - start)}
        other = "walk" if along == "erm" else "erm"
        expected = start + steps[along] * steps[other].norm() / steps[along].norm()
        after, metrics = naive.step(method, number)
        torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)
        assert metrics["length_ratio"] == pytest.approx(float(steps[other].norm() / steps[along].norm()))
        params = naive.state.params
