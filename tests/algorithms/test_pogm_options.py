"""POGM's options, where the paper and its authors' code leave one another or us, and what it reports."""

from dataclasses import replace

import pytest
import torch
from rounds import one_round, trajectories
from support import K, assert_close, batches, steps, toy

from pogm import ERM, POGM, pareto
from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm import KappaWarning
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.errors import UsageError
from pogm.core.optim import begun
from pogm.engine.domains import by_vmap


def test_the_ball_has_one_radius_by_convention():
    """κ as radius; √κ in both places; or, as printed, √κ in the problem and κ in the step."""
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(POGM()).values()], dim=1)
    G = pareto.gramian(flat)
    for convention, solve_radius, step_radius in (
        ("radius", 0.3, 0.3),
        ("sqrt", 0.3**0.5, 0.3**0.5),
        ("paper_mixed", 0.3**0.5, 0.3),
    ):
        before, after, metrics = one_round(POGM(kappa=0.3, meta_lr=1.0, convention=convention))
        mixture = pareto.mixture(G, solve_radius)
        torch.testing.assert_close(metrics["mixture"], mixture, rtol=1e-7, atol=1e-9)
        centre, mixed = flat.mean(0), mixture @ flat
        moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
        direction = centre + step_radius * centre.norm() * mixed / mixed.norm()
        torch.testing.assert_close(moved, direction, rtol=1e-7, atol=1e-10)


def test_rescale_divides_by_one_plus_kappa_squared_or_restores_the_mean_length():
    plain = one_round(POGM(kappa=0.5, meta_lr=1.0))
    official = one_round(POGM(kappa=0.5, meta_lr=1.0, rescale="official"))
    norm = one_round(POGM(kappa=0.5, meta_lr=1.0, rescale="norm"))

    def moved(result):
        before, after, _ = result
        return torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])

    torch.testing.assert_close(moved(official), moved(plain) / 1.25)
    torch.testing.assert_close(moved(norm).norm(), plain[2]["centre_norm"])
    torch.testing.assert_close(moved(norm) / moved(norm).norm(), moved(plain) / moved(plain).norm())


def test_the_official_preset_uses_the_authors_solver_and_rescale():
    pogm = POGM.preset("official")
    before, after, _ = one_round(pogm)
    rows = trajectories(pogm)
    _, weights = pareto.official_weights(pareto.gramian(rows), 0.5)
    assert_close(after.params, trees.move(before.params, trees.combine(weights, rows), 0.5))
    assert (pogm.kappa, pogm.meta_lr, pogm.inner_steps, pogm.inner_optimizer) == (0.5, 0.5, 1, "adam")


def test_the_paper_text_preset_has_the_numbers_of_the_text():
    pogm = POGM.preset("paper_text")
    assert (pogm.kappa, pogm.meta_lr, pogm.inner_steps) == (0.5, 0.01, 5)
    assert (pogm.inner_optimizer, pogm.convention) == ("sgd", "paper_mixed")


def test_inner_states_persist_from_round_to_round_or_start_afresh():
    """The state after two rounds is that of two Adam steps per domain, or is begun as zero."""
    kept = steps(POGM(inner_state="persist"), 2).optimizer["domains"]
    reset = steps(POGM(inner_state="reset"), 2).optimizer["domains"]
    assert kept["count"].tolist() == [2.0] * K
    assert all((leaf == 0).all() for leaf in begun(reset).values())


def test_reset_rounds_are_each_like_the_first():
    pogm = POGM(inner_state="reset")
    state = steps(pogm, 2)
    again, problem = toy(pogm)
    fresh = again._replace(params=state.params, step=state.step)
    (made,) = batches(seed=9)
    assert_close(pogm.step(state, [made], problem)[0].params, pogm.step(fresh, [made], problem)[0].params)


@pytest.mark.parametrize("each_domain_by", ["loop", "vmap"])
def test_a_pooled_centre_is_the_trajectory_of_a_copy_that_sees_every_domain(each_domain_by):
    options = {"each_domain": by_vmap} if each_domain_by == "vmap" else {}
    pogm = POGM(kappa=0.5, meta_lr=1.0, inner_steps=2, erm_direction="pooled")
    before, after, metrics = one_round(pogm, **options)
    state, problem = toy(ERM())
    for batch in batches(2):
        state, _ = ERM().step(state, [batch], problem)
    centre = torch.cat([(state.params[n] - before.params[n]).flatten() for n in before.params])
    flat = torch.cat([leaf.flatten(1) for leaf in trajectories(pogm).values()], dim=1)
    mixed = metrics["mixture"] @ flat
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    torch.testing.assert_close(moved, centre + 0.5 * centre.norm() * mixed / mixed.norm())
    assert (flat @ moved).min() >= (flat @ centre).min()


def test_the_pooled_copy_keeps_its_optimizer_from_round_to_round_or_starts_afresh():
    for inner_state in ("persist", "reset"):
        pogm = POGM(erm_direction="pooled", kappa=0.0, meta_lr=1.0, inner_state=inner_state)
        kept = inner_state == "persist"
        assert steps(pogm, 2).optimizer["pooled"]["count"] == (2.0 if kept else 0.0)
        # Without a ball the model goes where the pooled copy goes: with its Adam kept, that is ERM.
        there, erm = steps(pogm, 3).params, steps(ERM(), 3).params
        assert all(torch.allclose(there[name], leaf) for name, leaf in erm.items()) == kept


@pytest.mark.parametrize("centre", ["mean", "pooled"])
def test_where_no_direction_helps_every_domain_the_mean_is_kept_or_made_harmless(centre):
    """Two domains pull opposite ways, a third aside: what one gains, another loses."""

    class Opposed(POGM):
        def copies(self, state, batches, problem):
            found = super().copies(state, batches, problem)
            first, second = ({n: leaf[k] for n, leaf in found.trajectories.items()} for k in (0, 1))
            rows = [first, trees.map_leaves(torch.neg, first), second]
            return found._replace(trajectories=trees.stack(rows))

    moved = {}
    for stationary in ("keep", "project"):
        method = Opposed(kappa=0.9, meta_lr=1.0, stationary=stationary, erm_direction=centre)
        before, after, metrics = one_round(method)
        assert metrics["stationary"] == 1
        rows = Opposed().copies(before, batches(), toy(Opposed())[1]).trajectories
        step = trees.subtract(after.params, before.params)
        moved[stationary] = step, [trees.dot({n: leaf[k] for n, leaf in rows.items()}, step) for k in range(K)]
    assert min(moved["keep"][1]) < -1e-6
    assert min(moved["project"][1]) > -1e-9
    assert trees.dot(moved["project"][0], moved["project"][0]) > 1e-6


def test_with_classifier_scope_only_the_head_is_matched_and_the_rest_follows_the_mean():
    pogm = POGM(kappa=0.5, meta_lr=1.0, scope="classifier")
    before, after, _ = one_round(pogm)
    rows = trajectories(pogm)
    head = {name: leaf for name, leaf in rows.items() if name.startswith("head.")}
    weights = pareto.invariant_weights(pareto.gramian(head), 0.5)
    for name, leaf in rows.items():
        expected = trees.combine(weights, leaf) if name in head else leaf.mean(0)
        torch.testing.assert_close(after.params[name] - before.params[name], expected)


def broken(domain: int) -> list[Batch]:
    (batch,) = batches()
    x = batch.x.clone()
    x[domain, 0, 0] = torch.nan
    return [Batch(x, batch.y)]


def test_a_domain_that_is_not_finite_stops_the_round_and_is_named():
    pogm = POGM()
    state = steps(pogm, 1)
    _, problem = toy(pogm)
    after, metrics = pogm.step(state, broken(1), problem)
    assert_close(after.params, state.params, 0.0)
    assert after.memory["skipped"] == 1
    assert metrics["nonfinite"].tolist() == [0.0, 1.0, 0.0]
    assert after.optimizer["domains"]["count"].tolist() == [2.0, 0.0, 2.0], "only its own optimizer is cleared"
    assert trees.all_finite(begun(after.optimizer["domains"]))


def test_or_is_dropped_and_the_others_go_on_without_it():
    pogm = POGM(nonfinite="drop", kappa=0.5, meta_lr=1.0)
    state, problem = toy(pogm)
    after, metrics = pogm.step(state, broken(1), problem)
    rows = trees.map_leaves(lambda leaf: leaf[[0, 2]], trajectories(pogm))
    weights = pareto.invariant_weights(pareto.gramian(rows), 0.5)
    assert_close(after.params, trees.move(state.params, trees.combine(weights, rows), 1.0))
    assert after.memory["skipped"] == 0
    assert metrics["skipped"] == 0


def test_a_featurizer_that_is_not_finite_is_seen_in_classifier_scope_too():
    pogm = POGM(scope="classifier")
    state, problem = toy(pogm)
    after, _ = pogm.step(state, broken(2), problem)
    assert_close(after.params, state.params, 0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "official", "erm_direction": "pooled"},
        {"erm_direction": "pooled", "nonfinite": "drop"},
        {"solver": "official", "nonfinite": "drop"},
        {"solver": "official", "convention": "sqrt"},
        {"solver": "official", "stationary": "project"},
    ],
)
def test_options_that_are_not_defined_together_are_refused(options):
    with pytest.raises(UsageError, match=" and ".join(f"{n}={v!r}" for n, v in options.items())):
        POGM(**options)


def test_a_head_is_needed_to_match_the_head():
    state, problem = toy(Headless())
    with pytest.raises(UsageError, match="head"):
        replace(Headless(), scope="classifier").step(state, batches(), problem)


def test_the_official_solver_is_reported_with_its_own_gap():
    pogm = POGM.preset("official")
    _, _, metrics = one_round(pogm)
    G = pareto.gramian(trajectories(pogm))
    mixture, _ = pareto.official_weights(G, 0.5)
    torch.testing.assert_close(metrics["gap"], pareto.gap(G, mixture, 0.5) / G.diagonal().mean())
    assert metrics["gap"] > 1e-9, "twenty steps do not get there"


def test_a_skipped_round_reports_no_angles():
    state, problem = toy(POGM())
    _, metrics = POGM().step(state, broken(1), problem)
    for name in ("angle", "norm", "worst", "mixture", "gap"):
        assert metrics[name].isnan().all(), name


def test_what_is_reported_without_a_dropped_domain_is_what_the_others_alone_report():
    pogm = POGM(nonfinite="drop")
    state, problem = toy(pogm)
    _, metrics = pogm.step(state, broken(1), problem)
    rows = trees.map_leaves(lambda leaf: leaf[[0, 2]], trajectories(pogm))
    G = pareto.gramian(rows)
    alone = pareto.solve(G, 0.5)
    torch.testing.assert_close(metrics["worst"], alone.worst)
    torch.testing.assert_close(metrics["norm"], pareto.length(G, alone.weights))
    torch.testing.assert_close(metrics["centre_norm"], G.mean().sqrt())
    torch.testing.assert_close(metrics["angle"][[0, 2]], pareto.angles(G, alone.weights))
    assert metrics["angle"][1].isnan()


def test_the_worst_alignment_is_that_of_the_problem_whatever_the_rescale():
    values = {one_round(POGM(rescale=rescale))[2]["worst"].item() for rescale in ("none", "official", "norm")}
    assert max(values) - min(values) < 1e-12


def test_an_angle_over_the_head_alone_is_not_called_an_angle():
    assert "angle" not in one_round(POGM(scope="classifier"))[2]


def test_weights_that_would_overflow_are_not_written():
    pogm = POGM(meta_lr=1e308)
    state, problem = toy(pogm, lr=1e3)
    after, _ = pogm.step(state, batches(), problem)
    assert_close(after.params, state.params, 0.0)
    assert after.memory["skipped"] == 1


def test_a_round_in_which_no_domain_moves_is_counted():
    pogm = POGM(inner_optimizer="sgd", meta_lr=1.0)
    state, problem = toy(pogm, lr=1e-300)
    _, metrics = pogm.step(state, batches(), problem)
    assert metrics["skipped"] == 1, "trajectories too short to be more than rounding"


def test_a_ball_that_reaches_the_origin_is_warned_about():
    with pytest.warns(KappaWarning, match="from 1 on"):
        POGM(kappa=1.5)


class Headless(POGM):
    """POGM on a network whose last layer is hidden in the featurizer."""

    def build(self, features, width, num_classes, num_domains):
        network = Algorithm().build(features, width, num_classes, num_domains)
        return type(network)(torch.nn.Sequential(network.features, network.head), torch.nn.Identity())
