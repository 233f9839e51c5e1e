"""The published variants of POGM follow their authors' updates.

``published_updates.json`` holds rounds in float64 that ``benchmarks/published_updates.py`` computed without the
package: ``nn.Module`` copies, ``torch.optim.Adam`` with state dictionaries that are carried over, and autograd with
``torch.optim.SGD`` in the solver, step by step as in the authors' ``CAG1`` (their ``CAG_T`` for ``MeasurementPOGM``).
"""

import json
from pathlib import Path

import pytest
import torch
from rounds import one_round, trajectories
from support import assert_close, steps, toy
from torch import nn

from pogm import pareto
from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class
from pogm.algorithms.pogm import POGM
from pogm.algorithms.pogm_published import MeasurementPOGM, OfficialPOGM, PaperTextPOGM
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.core.problem import Problem
from pogm.engine.per_domain import gradient, map_by_loop, map_by_vmap

RUNS = json.loads((Path(__file__).parent / "published_updates.json").read_text())


def tensors(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("each_domain", [map_by_loop, map_by_vmap])
@pytest.mark.parametrize("run", RUNS, ids=[f"{r['algorithm']}, E = {r['inner_steps']}, lr = {r['lr']}" for r in RUNS])
def test_every_round_equals_the_authors_up_to_rounding(run, each_domain):
    method = algorithm_class(run["algorithm"])(
        kappa=run["kappa"], meta_lr=run["meta_lr"], inner_steps=run["inner_steps"]
    )
    network = Network(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 3)).double().requires_grad_(False)
    optimizer = method.optimizer(run["lr"], run["weight_decay"])
    problem = Problem(network, optimizer, len(run["batches"][0]["y"]), 3, gradient, each_domain)
    params = {name: tensors(run["start"][name]) for name, _ in network.named_parameters()}
    state = method.start(params, {}, random.key(0), problem)
    made = [Batch(tensors(batch["x"]), torch.tensor(batch["y"])) for batch in run["batches"]]
    for number, expected in enumerate(run["rounds"]):
        some = made[number * method.minibatches : (number + 1) * method.minibatches]
        state, metrics = method.step(state, some, problem)
        found = torch.cat([leaf.flatten() for leaf in state.params.values()])
        torch.testing.assert_close(found, tensors(expected["weights"]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(metrics["mixture"], tensors(expected["mixture"]), rtol=1e-9, atol=1e-9)


def test_official_variant_uses_the_authors_solver_rescale_and_defaults():
    pogm = OfficialPOGM()
    before, after, metrics = one_round(pogm)
    rows = trajectories(pogm)
    G = pareto.gramian(rows)
    mixture, weights = pareto.official_weights(G, 0.5)
    assert_close(after.params, trees.move(before.params, trees.combine(weights, rows), 0.5))
    assert (pogm.kappa, pogm.meta_lr, pogm.inner_steps, pogm.inner_optimizer) == (0.5, 0.5, 1, "adam")
    torch.testing.assert_close(metrics["gap"], pareto.gap(G, mixture, 0.5) / G.diagonal().mean())
    assert metrics["gap"] > 1e-9, "twenty steps do not reach the optimum"


def test_paper_text_variant_has_its_own_defaults_and_two_radii():
    pogm = PaperTextPOGM()
    assert (pogm.kappa, pogm.meta_lr, pogm.inner_steps, pogm.inner_optimizer) == (0.5, 0.01, 5, "sgd")
    before, after, metrics = one_round(pogm)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(pogm).values()], dim=1)
    mixture = pareto.mixture(pareto.gramian(flat), 0.5**0.5)
    torch.testing.assert_close(metrics["mixture"], mixture, rtol=1e-7, atol=1e-9)
    centre, mixed = flat.mean(0), mixture @ flat
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    direction = centre + 0.5 * centre.norm() * mixed / mixed.norm()
    torch.testing.assert_close(moved, 0.01 * direction, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "centre"), [(OfficialPOGM, "erm"), (PaperTextPOGM, "erm"), (MeasurementPOGM, "mean")]
)
def test_published_variants_have_the_published_centre(method, centre):
    with pytest.raises(UsageError, match="centre"):
        method(centre=centre)


def test_measurement_variant_without_a_ball_equals_pogm_around_erm():
    (before, problem), method = toy(MeasurementPOGM()), MeasurementPOGM(kappa=0.0, meta_lr=1.0)
    made = [Batch(torch.randn(3, 8, 6).double(), torch.randint(4, (3, 8)))]
    assert_close(
        method.step(before, made, problem)[0].params, POGM(kappa=0.0).step(before, made, problem)[0].params, 1e-12
    )


@pytest.mark.parametrize("cls", [OfficialPOGM, MeasurementPOGM])
def test_variants_with_gradient_descent_do_not_run_the_exact_solver(cls, monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("the exact solver was called")

    for name in ("solve", "minimise"):
        monkeypatch.setattr(f"pogm.pareto.solution.{name}", forbidden)
    monkeypatch.setattr("pogm.algorithms.pogm.solve", forbidden)
    monkeypatch.setattr("pogm.algorithms.pogm_published.solve", forbidden)
    steps(cls(), 2)
