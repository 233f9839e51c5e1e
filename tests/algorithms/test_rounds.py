"""Methods on trajectories: the copies, and the update of the model."""

from dataclasses import replace

import pytest
import torch
from rounds import one_round, trajectories
from support import K, assert_close, batches, steps, toy
from torch import nn

from pogm import POGM, pareto
from pogm.algorithms import all_algorithms
from pogm.algorithms.mgda import MGDA
from pogm.algorithms.reptile import Reptile
from pogm.algorithms.rounds import WeightedRounds
from pogm.algorithms.upgrad import UPGrad
from pogm.core import optimizers, trees
from pogm.core.batch import Batch
from pogm.core.flat_params import flat_vector, flatten
from pogm.core.model import Network
from pogm.core.random_layers import Dropout

neighbours = pytest.mark.parametrize("cls", [c for c in all_algorithms().values() if issubclass(c, WeightedRounds)])


@neighbours
@pytest.mark.parametrize("options", [{}, {"inner_steps": 3}, {"inner_optimizer": "sgd", "inner_steps": 2}])
def test_a_round_moves_along_the_weighted_trajectories(cls, options):
    method = cls(meta_lr=0.7, **options)
    before, after, metrics = one_round(method)
    rows = trajectories(method)
    weights = method.weights(pareto.gramian(rows), before)
    torch.testing.assert_close(metrics["weights"], weights)
    assert_close(after.params, trees.move(before.params, trees.combine(weights, rows), 0.7))


@neighbours
def test_single_domain_follows_its_trajectory(cls):
    method = cls(meta_lr=1.0, **({"radius": 0.0} if cls.__name__ == "CAGrad" else {}))
    assert_close(steps(method, 3, domains=1).params, steps(Reptile(meta_lr=1.0), 3, domains=1).params)


@pytest.mark.parametrize("options", [{}, {"inner_steps": 3}, {"centre": "mean", "inner_state": "reset"}])
def test_copies_that_write_into_rows_give_the_same_bits_and_change_no_input(options, monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)  # as a large network on a CPU
    method = POGM(**options)
    start, problem = toy(method)
    ends = []
    for passes_views in (False, True):
        state = method.start(flatten(start.params), start.buffers, start.key, problem)
        for number in range(3):
            before = trees.map_leaves(torch.clone, state)
            made = batches(method.minibatches, seed=number)
            with torch.no_grad():
                after, _ = method.step(state, made, replace(problem, passes_views=passes_views))
            assert_close(state, before, 0.0)
            state = after
        ends.append(state)
    assert_close(ends[1], ends[0], 0.0)


def test_base_classes_are_not_registered():
    assert not {"DomainRounds", "WeightedRounds"} & all_algorithms().keys()


def test_metrics_describe_the_domains():
    method = MGDA()
    before, after, metrics = one_round(method)
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(method).values()], dim=1)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    torch.testing.assert_close(metrics["cosine"], torch.cosine_similarity(flat, moved[None]))
    torch.testing.assert_close(metrics["norm"] * method.meta_lr, moved.norm())
    torch.testing.assert_close(metrics["worst"] * method.meta_lr, (flat @ moved).min())


def test_inner_states_are_kept_or_reset_between_rounds():
    assert steps(UPGrad(), 2).optimizer["domains"]["count"].tolist() == [2.0] * K
    assert steps(UPGrad(inner_state="reset"), 2).optimizer["domains"]["count"].tolist() == [0.0] * K


@neighbours
def test_nonfinite_domain_stops_the_round_and_is_reported(cls):
    method = cls()
    state = steps(method, 1)
    _, problem = toy(method)
    (batch,) = batches()
    x = batch.x.clone()
    x[1, 0, 0] = torch.nan
    after, metrics = method.step(state, [batch._replace(x=x)], problem)
    assert_close(after.params, state.params, 0.0)
    assert metrics["nonfinite"].tolist() == [0.0, 1.0, 0.0]
    assert metrics["weights"].isnan().all()
    assert after.memory["skipped"] == 1
    assert after.optimizer["domains"]["count"].tolist() == [2.0, 0.0, 2.0], "only its own optimizer is cleared"
    fresh = trees.repeat(problem.optimizer.init(state.params), K)
    mixed = trees.where(torch.tensor([True, False, True]), after.optimizer["domains"], fresh)
    anew, _ = method.step(after._replace(optimizer={"domains": mixed}), [batch], problem)
    assert_close(method.step(after, [batch], problem)[0], anew, 0.0)
    assert trees.all_finite(anew)


def test_round_with_cancelling_trajectories_is_counted():
    """The shortest mixture of opposite trajectories is zero."""

    class Opposed(MGDA):
        def copies(self, state, batches, problem):
            found = super().copies(state, batches, problem)
            signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
            first = {n: torch.einsum("k,...->k...", signs, leaf[0]) for n, leaf in found.trajectories.items()}
            return found._replace(trajectories=first)

    _, after, metrics = one_round(Opposed())
    assert (metrics["skipped"], after.memory["skipped"]) == (1, 1)


def test_kappa_is_the_first_positional_argument():
    """The shared hyperparameters are keyword arguments."""
    assert POGM(0.3).kappa == 0.3
    with pytest.raises(TypeError):
        Reptile(0.1)


def test_metric_loss_is_the_mean_over_domains_and_minibatches():
    method = Reptile(inner_steps=3, inner_optimizer="sgd")
    state, problem = toy(method)
    made, losses = batches(3), []
    for k in range(K):
        params, inner = state.params, problem.optimizer.init(state.params)
        for batch in made:
            one, here = Batch(batch.x[k : k + 1], batch.y[k : k + 1]), state._replace(params=params)
            slope, loss = Reptile().gradient(here, one, problem)
            params, inner = problem.optimizer.update(params, slope, inner)
            losses.append(loss.value)
    _, metrics = method.step(state, made, problem)
    torch.testing.assert_close(metrics["loss"], torch.stack(losses).mean())


def test_skipped_round_does_not_change_batch_norm():
    state, problem = toy(Reptile(), batch_norm=True)
    (batch,) = batches()
    x = batch.x.clone()
    x[1, 0, 0] = torch.nan
    after, _ = Reptile().step(state, [batch._replace(x=x)], problem)
    assert after.memory["skipped"] == 1
    assert_close(after.buffers, state.buffers, 0.0)


def test_every_copy_has_its_own_dropout_masks():
    """Domains with the same images have different dropout masks."""

    class Dropping(Reptile):
        def build(self, features, width, num_classes, num_domains):
            return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))

    (batch,) = batches()
    same = Batch(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    state, problem = toy(Dropping())
    for leaf in Dropping().copies(state, [same], problem).trajectories.values():
        assert len(leaf.unique(dim=0)) == K


@neighbours
def test_identical_domains_move_along_their_common_trajectory(cls):
    (batch,) = batches()
    same = Batch(batch.x[:1].expand_as(batch.x), batch.y[:1].expand_as(batch.y))
    method = cls(meta_lr=1.0)
    state, problem = toy(method)
    after, _ = method.step(state, [same], problem)
    own = trees.index(method.copies(state, [same], problem).trajectories, 0)
    factor = (1 + 0.4) / (1 + 0.4**2) if cls.__name__ == "CAGrad" else 1.0
    assert_close(after.params, trees.move(state.params, own, factor), 1e-8)


@neighbours
def test_round_without_updates_changes_nothing_and_is_counted(cls):
    state, problem = toy(cls(inner_optimizer="sgd"), lr=0.0)
    after, metrics = cls(inner_optimizer="sgd").step(state, batches(), problem)
    assert_close(after.params, state.params, 0.0)
    assert metrics["weights"].isfinite().all()
    assert after.memory["skipped"] == 1


class Assisted:
    """Method on a network with a part that does not predict, and that becomes infinite in domain 1."""

    def build(self, features, width, num_classes, num_domains):
        network = super().build(features, width, num_classes, num_domains)
        network.add_module("adversary", nn.Linear(width, num_classes))
        return network

    def copies(self, state, batches, problem):
        found = super().copies(state, batches, problem)
        broken = found.trajectories["adversary.weight"].clone()
        broken[1] = torch.inf
        return found._replace(trajectories=found.trajectories | {"adversary.weight": broken})


@pytest.mark.parametrize("base", [POGM, Reptile])
def test_nonfinite_domain_is_reported_if_only_unmatched_weights_are_nonfinite(base):
    """Otherwise its optimizer would keep NaN, and all later rounds would be skipped."""
    before, after, metrics = one_round(type("Method", (Assisted, base), {})())
    assert metrics["nonfinite"].tolist() == [0.0, 1.0, 0.0]
    assert_close(after.params, before.params, 0.0)
    assert after.optimizer["domains"]["count"].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("method", [POGM, Reptile])
def test_step_that_could_overflow_is_not_taken(method):
    """The lengths of the trajectories decide this before the new weights are computed."""
    for rate, taken in ((1e200, True), (1e300, False)):
        algorithm = method(meta_lr=torch.tensor(rate, dtype=torch.float64))  # tensors are not validated
        state, problem = toy(algorithm)
        after, metrics = algorithm.step(state, batches(), problem)
        assert trees.all_finite(after.params)
        assert metrics["skipped"].item() == (not taken)
        assert torch.equal(flat_vector(after.params), flat_vector(state.params)) != taken
