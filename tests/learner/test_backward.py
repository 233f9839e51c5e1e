"""pogm.backward: gradients of methods for any optimizer, with AMP and DDP; aggregators of TorchJD."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from processes import Team
from support import INPUTS, C, K, assert_close, batches, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchjd.aggregation import CAGrad as TheirCAGrad
from torchjd.aggregation import ConFIG

import pogm
from pogm import ERM, MGDA, POGM, ANDMask, CAGrad, PCGrad, Reptile, SANDMask, TorchJD, UPGrad
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.learner import Learner


def theirs():
    return TheirCAGrad(c=0.5, norm_eps=1e-10)


METHODS = [
    POGM(0.3),
    POGM(0.3, centre="mean"),
    Reptile(),
    CAGrad(),
    MGDA(),
    UPGrad(),
    ANDMask(0.5),
    TorchJD(theirs()),
]


def mlp(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, C)).to(dtype)


def losses(module, seed=0, rows=slice(None), dtype=torch.float64):
    (batch,) = batches(seed=seed)
    x = batch.x[:, rows].to(dtype)
    return [F.cross_entropy(module(x[k]), batch.y[k, rows]) for k in range(K)]


def domain_gradients(module, seed=0):
    """Return the gradients of the domains, [K, P]."""
    rows = [torch.autograd.grad(loss, module.parameters()) for loss in losses(module, seed)]
    return torch.stack([torch.cat([leaf.flatten() for leaf in row]) for row in rows])


def grads(module):
    return torch.cat([leaf.grad.flatten() for leaf in module.parameters()])


def combined(method, module=None, seed=0, scale=1.0):
    module = module or mlp()
    module.zero_grad()
    pogm.backward([scale * loss for loss in losses(module, seed)], module.parameters(), method)
    return grads(module)


def test_pogm_solves_its_problem_for_the_gradients():
    """d = ḡ + κ‖ḡ‖ g_π/‖g_π‖, and no other point of the ball has a larger worst inner product."""
    kappa, G = 0.3, domain_gradients(mlp())
    d, centre = combined(POGM(kappa)), G.mean(0)
    radius = kappa * centre.norm()
    assert (d - centre).norm().item() == pytest.approx(radius.item())
    torch.manual_seed(1)
    for _ in range(200):
        other = torch.randn(K, dtype=d.dtype) @ G  # the optimum is in the span of the gradients
        point = centre + radius * torch.rand((), dtype=d.dtype) * other / other.norm()
        assert (G @ point).min() <= (G @ d).min() + 1e-9


def test_reptile_and_pogm_without_a_radius_give_the_mean_gradient():
    mean = domain_gradients(mlp()).mean(0)
    for method in (Reptile(), POGM(0.0), POGM(0.0, centre="mean")):
        torch.testing.assert_close(combined(method), mean)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_gradient_scales_with_the_losses(method):
    """So a GradScaler works."""
    torch.testing.assert_close(combined(method, scale=1024.0), 1024 * combined(method), rtol=1e-6, atol=1e-9)


def test_one_step_of_sgd_equals_a_round_with_one_inner_step_of_sgd():
    """The step size α of the method is the learning rate of the optimizer."""
    lr, alpha = 0.05, 0.5
    for method in (POGM(0.3), CAGrad(), UPGrad(), MGDA()):
        module, other = mlp(), mlp()
        round_method = replace(method, inner_optimizer="sgd", meta_lr=alpha)
        (batch,) = batches()
        Learner(other, round_method, lr=lr).step(batch)
        optimizer = torch.optim.SGD(module.parameters(), lr=alpha * lr)
        pogm.backward(losses(module), module.parameters(), method)
        optimizer.step()
        for left, right in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(left, right)


def test_masks_equal_their_algorithms():
    for method in (ANDMask(0.5), SANDMask(0.5)):
        G, found = domain_gradients(mlp()), combined(method)
        sizes = [leaf.numel() for leaf in mlp().parameters()]
        expected = torch.cat([method._mask(part) for part in G.split(sizes, 1)])
        torch.testing.assert_close(found, expected)


def test_gradients_are_added_and_unused_parameters_stay_without():
    module, unused = mlp(), nn.Parameter(torch.zeros(2, dtype=torch.float64))
    once = combined(POGM(), module)
    metrics = pogm.backward(losses(module), [*module.parameters(), unused], POGM())
    torch.testing.assert_close(grads(module), 2 * once)
    assert unused.grad is None
    assert metrics["mixture"].shape == (K,)
    assert metrics["loss"].item() == pytest.approx(torch.stack(losses(module)).mean().item())


def test_losses_of_one_pass_as_a_tensor():
    module = mlp()
    expected = combined(POGM(), module)
    module.zero_grad()
    pogm.backward(torch.stack(losses(module)), module.parameters(), POGM())
    torch.testing.assert_close(grads(module), expected)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.LBFGS])
def test_any_optimizer_of_torch_learns(optimizer):
    module = mlp()
    made = optimizer(module.parameters(), lr=0.05)

    def closure():
        made.zero_grad()
        return pogm.backward(losses(module), module.parameters(), POGM())["loss"]

    values = [float(made.step(closure)) for _ in range(10)]
    assert values[-1] < 0.8 * values[0]


def test_grad_scaler_skips_a_step_with_an_overflow_and_then_goes_on():
    module = mlp(dtype=torch.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(factor=1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found = losses(module, dtype=torch.float32)
        found[1] = found[1] * factor
        pogm.backward([scaler.scale(loss) for loss in found], module.parameters(), POGM())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    before = [leaf.detach().clone() for leaf in module.parameters()]
    step(factor=float("inf"))
    assert all(torch.equal(leaf, old) for leaf, old in zip(module.parameters(), before, strict=True))
    assert scaler.get_scale() == 2.0**9
    step()
    assert scaler.get_scale() == 2.0**9
    unscaled = mlp(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses(unscaled, dtype=torch.float32)
    pogm.backward(found, unscaled.parameters(), POGM())
    for leaf, old, other in zip(module.parameters(), before, unscaled.parameters(), strict=True):
        torch.testing.assert_close(leaf.detach(), old - 0.1 * other.grad, rtol=1e-2, atol=1e-4)


def distributed_steps(world):
    """Train with DDP; every process has half of the samples of every domain."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(mlp(seed=rank))  # copies the weights of rank 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        with model.no_sync():
            found = losses(model, step, slice(rank, None, size))
        optimizer.zero_grad()
        torch.manual_seed(100 * rank + step)
        pogm.backward(found, model.parameters(), METHOD_OF_STEP[step], group=dist.group.WORLD)
        optimizer.step()
    return [leaf.detach().tolist() for leaf in model.parameters()]


METHOD_OF_STEP = [POGM(0.3), POGM(0.3), PCGrad()]  # PCGrad draws an order, which must be the same in all processes


def test_ddp_with_two_processes_equals_one_process():
    team = Team(2)
    try:
        first, second = team.do(distributed_steps)
    finally:
        team.end()
    module = mlp()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        torch.manual_seed(step)
        pogm.backward(losses(module, step), module.parameters(), METHOD_OF_STEP[step])
        optimizer.step()
    for one, two, alone in zip(first, second, module.parameters(), strict=True):
        assert one == two
        torch.testing.assert_close(torch.tensor(one, dtype=torch.float64), alone.detach())


def test_aggregator_of_torchjd_equals_our_method_on_trajectories():
    """CAGrad of both packages; ours divides by 1 + c²."""
    for options in ({}, {"inner_steps": 2}, {"partition": "layer"}):
        found = steps(TorchJD(theirs(), meta_lr=0.4, **options), 3)
        expected = steps(CAGrad(0.5, meta_lr=0.5, **options), 3)
        assert_close(found.params, expected.params, 1e-4)


def test_aggregator_of_torchjd_trains_a_learner():
    module = mlp()
    learner = Learner(module, TorchJD(theirs()), lr=0.05)
    values = [learner.step(batches()[0])["loss"].item() for _ in range(20)]
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize("wrong", [ConFIG(), "UPGrad", TheirCAGrad])
def test_other_aggregators_are_refused(wrong):
    with pytest.raises(UsageError, match=r"depends only on inner products, such as UPGrad.*; found"):
        TorchJD(wrong)


@pytest.mark.parametrize(
    ("method", "found", "message"),
    [
        (ERM(), None, "ANDMask, AlignedMTL, CAGrad.*; found ERM. Use a Learner"),
        (POGM, None, "found the class POGM"),
        (POGM(inner_steps=2), None, "inner_steps=1 .*found inner_steps=2"),
        (POGM(partition="layer"), None, "found inner_steps=1 and partition='layer'"),
        (POGM(), [torch.zeros(2)], r"as a scalar tensor; found \[\[2\]\]"),
        (POGM(), [torch.zeros(())], r"constant losses of domains \[0\]"),
        (POGM(), [], r"scalar tensor; found \[\]"),
        (POGM(), torch.ones((), requires_grad=True), r"a list of K scalars; found a tensor of shape \[\]"),
    ],
)
def test_bad_arguments_are_refused(method, found, message):
    module = mlp()
    with pytest.raises(UsageError, match=f"Expected .*{message}"):
        pogm.backward(losses(module) if found is None else found, module.parameters(), method)


def test_parameters_without_gradients_are_refused():
    with pytest.raises(UsageError, match=r"require gradients; found none. Pass module.parameters"):
        pogm.backward(losses(mlp()), [], POGM())


def test_docstring_names_all_methods_that_combine_gradients():
    able = {name for name, algorithm in all_algorithms().items() if getattr(algorithm, "combine_gradients", None)}
    variants = {"OfficialPOGM", "MeasurementPOGM", "PaperTextPOGM"}
    gramian = {"AlignedMTL", "CAGrad", "ConFIG", "IMTLG", "MGDA", "NashMTL", "PCGrad", "Reptile", "UPGrad"}
    assert able == variants | gramian | {"POGM", "ANDMask", "SANDMask"}
    assert all(name in pogm.backward.__doc__ for name in able - variants)


def test_compiled_modules_need_buffers_that_stay():
    module = torch.compile(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), backend="aot_eager"
    )

    def losses() -> list[torch.Tensor]:
        labels = torch.tensor([0, 1] * 4)
        module(torch.randn(16, 4))  # another size: the second graph has dynamic shapes and donated buffers
        return [F.cross_entropy(module(torch.randn(8, 4)), labels) for _ in range(2)]

    with pytest.raises(UsageError, match="donated_buffer = False"):
        pogm.backward(losses(), module.parameters(), POGM())
    torch._dynamo.reset()
    with torch._functorch.config.patch(donated_buffer=False):
        pogm.backward(losses(), module.parameters(), POGM())
    torch._dynamo.reset()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())
