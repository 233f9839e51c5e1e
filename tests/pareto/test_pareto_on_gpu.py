"""On a GPU the solver does not synchronise, can be captured, and gives the numbers of the CPU."""

import pytest
import torch
from pareto_inputs import KINDS, RADII, draw, every_weighting, gram, orders, relative, rounding
from support import needs_gpu, no_synchronisation
from torch.testing import assert_close

from pogm.core.compilation import compiling
from pogm.pareto import gap, gramian, interior, official_weights, solve

pytestmark = [pytest.mark.gpu, needs_gpu]

sizes = pytest.mark.parametrize("K", [1, 3, 8, 16, 33])


def everything(H, radius):
    G = gramian({"w": H})
    solution = solve(G, radius, stationary="project")
    return *solution, gap(G, solution.mixture, radius), *official_weights(G, radius)


@sizes
def test_solver_does_not_synchronise(K):
    H = torch.ones(K, 20, device="cuda").cumsum(0).sin()
    radii = torch.full((2,), 0.5, device="cuda")
    with no_synchronisation():
        everything(H, 0.5)
        torch.func.vmap(everything)(torch.stack([H, H + 1]), radii)


@sizes
def test_gpu_equals_cpu(K):
    H = draw("agreeing", K, 20, seed=0)
    for ours, theirs in zip(everything(H.cuda(), 0.5), everything(H, 0.5), strict=True):
        assert_close(ours.cpu(), theirs, atol=1e-9, rtol=1e-9)


def test_compiled_solver_equals_cpu_and_can_be_captured():
    """Sixteen domains use the interior-point methods."""
    H = draw("agreeing", 16, 20, seed=0)
    there, theirs = H.cuda(), everything(H, 0.5)
    with compiling(True):
        everything(there, 0.5)
        torch.cuda.synchronize()
        with no_synchronisation():
            everything(there, 0.5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ours = everything(there, 0.5)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.cpu(), other, atol=1e-9, rtol=1e-9)


@sizes
def test_batch_can_be_captured_and_replayed_on_new_updates(K):
    H = draw("agreeing", K, 20, seed=0, count=4).cuda()
    radius = torch.tensor([0.05, 0.1, 0.5, 0.9], device="cuda", dtype=torch.float64)
    mapped = torch.func.vmap(everything)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            mapped(H, radius)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mapped(H, radius)
    fresh = draw("agreeing", K, 20, seed=1, count=4)
    H.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    for i in range(4):
        alone = everything(fresh[i], radius[i].item())
        for ours, theirs in zip(captured, alone, strict=True):
            assert_close(ours[i].cpu(), theirs, atol=1e-9, rtol=1e-9)


def test_gramian_on_gpu_equals_cpu():
    H = draw("plain", 3, 20, seed=0)
    assert_close(gramian(H.cuda()).cpu(), gram(H))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [9, 16, 33, 64])
def test_kernel_is_as_exact_as_the_solver_on_a_cpu(K, kind):
    """The gap is a certificate: it bounds the distance from the optimum, whatever the solver did."""
    G = gram(draw(kind, K, K + 5, seed=K, count=32))
    for radius in RADII:
        mixture = solve(G.cuda(), radius).mixture.cpu()
        assert (relative(gap(G, mixture, radius), G) <= 1e-8 + rounding(G, mixture)).all()


@pytest.mark.parametrize("K", [9, 33, 64])
def test_kernel_projects_like_the_solver_on_a_cpu(K):
    G = gram(draw("plain", K, K + 5, seed=K, count=32))
    b = -G.diagonal(dim1=-2, dim2=-1).sqrt()
    assert_close(interior.project(G.cuda(), b.cuda()).cpu(), interior.project(G, b), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("K", [1, 2, 3, 5, 8, 10])
def test_weightings_equal_those_on_the_cpu_without_synchronisation(K):
    H = draw("plain", K, K + 1, seed=0, count=4)
    G, met = gram(H), orders(K, count=4)
    on_device, met_there = G.cuda(), met.cuda()
    with no_synchronisation():
        found = every_weighting(on_device, 0.4, met_there)
    for ours, theirs in zip(found, every_weighting(G, 0.4, met), strict=True):
        assert_close(ours.cpu(), theirs, atol=1e-7, rtol=1e-7)
