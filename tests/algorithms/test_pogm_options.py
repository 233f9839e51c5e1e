"""Options of POGM for which the paper, the authors' code and ours differ, and its metrics."""

from dataclasses import replace

import pytest
import torch
from rounds import centre_of, one_round, trajectories
from support import K, assert_close, batches, steps, toy

from pogm import POGM, pareto
from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm import KappaWarning
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import replace_fields
from pogm.core.optimizers import apply_reset


@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_rescaled_step_keeps_its_direction_and_has_the_length_of_the_centre(centre):
    plain = one_round(POGM(kappa=0.5, meta_lr=1.0, centre=centre))
    norm = one_round(POGM(kappa=0.5, meta_lr=1.0, centre=centre, rescale="norm"))

    def moved(result):
        before, after, _ = result
        return torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])

    torch.testing.assert_close(moved(norm).norm(), plain[2]["centre_norm"])
    torch.testing.assert_close(moved(norm) / moved(norm).norm(), moved(plain) / moved(plain).norm())


def test_inner_states_are_kept_or_reset_between_rounds():
    """The state after two rounds is that of two Adam steps per domain, or zero with reset."""
    kept = steps(POGM(inner_state="persist"), 2).optimizer["domains"]
    reset = steps(POGM(inner_state="reset"), 2).optimizer["domains"]
    assert kept["count"].tolist() == [2.0] * K
    assert all((leaf == 0).all() for leaf in apply_reset(reset).values())


def test_every_round_with_reset_equals_the_first():
    pogm = POGM(inner_state="reset")
    state = steps(pogm, 2)
    again, problem = toy(pogm)
    fresh = again._replace(params=state.params, step=state.step)
    (made,) = batches(seed=9)
    assert_close(pogm.step(state, [made], problem)[0].params, pogm.step(fresh, [made], problem)[0].params)


@pytest.mark.parametrize("centre", ["mean", "erm"])
def test_step_is_the_centre_if_no_direction_helps_every_domain(centre):
    """Two of three domains have opposite trajectories, so no direction helps both."""

    class Opposed(POGM):
        def copies(self, state, batches, problem):
            found = super().copies(state, batches, problem)
            first, second = ({n: leaf[k] for n, leaf in found.trajectories.items()} for k in (0, 1))
            rows = [first, trees.map_leaves(torch.neg, first), second]
            return found._replace(trajectories=trees.stack(rows))

    before, after, metrics = one_round(Opposed(kappa=0.9, meta_lr=1.0, centre=centre))
    assert metrics["stationary"] == 1
    rows = Opposed().copies(before, batches(), toy(Opposed())[1]).trajectories
    flat = torch.cat([leaf.flatten(1) for leaf in rows.values()], dim=1)
    moved = torch.cat([(after.params[n] - before.params[n]).flatten() for n in before.params])
    torch.testing.assert_close(moved, centre_of(Opposed(centre=centre), flat))


def test_classifier_partition_matches_only_the_head_and_averages_the_rest():
    pogm = POGM(kappa=0.5, meta_lr=1.0, partition="classifier", centre="mean")
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


def test_nonfinite_domain_stops_the_round_and_is_reported():
    pogm = POGM()
    state = steps(pogm, 1)
    _, problem = toy(pogm)
    after, metrics = pogm.step(state, broken(1), problem)
    assert_close(after.params, state.params, 0.0)
    assert after.memory["skipped"] == 1
    assert metrics["nonfinite"].tolist() == [0.0, 1.0, 0.0]
    assert after.optimizer["domains"]["count"].tolist() == [2.0, 0.0, 2.0], "only its own optimizer is cleared"
    assert trees.all_finite(apply_reset(after.optimizer["domains"]))


def test_classifier_partition_detects_a_nonfinite_featurizer():
    pogm = POGM(partition="classifier")
    state, problem = toy(pogm)
    after, _ = pogm.step(state, broken(2), problem)
    assert_close(after.params, state.params, 0.0)


@pytest.mark.parametrize("name", ["erm_direction", "convention", "solver", "stationary", "nonfinite"])
def test_former_option_raises_an_error_with_its_replacement(name):
    with pytest.raises(UsageError, match=f"{name}.*was replaced by"):
        replace_fields(POGM(), {name: "x"})


@pytest.mark.parametrize(("name", "now"), [("official", "OfficialPOGM"), ("paper_text", "PaperTextPOGM")])
def test_former_preset_raises_an_error_with_its_replacement(name, now):
    with pytest.raises(UsageError, match=now):
        POGM.preset(name)


def test_classifier_partition_needs_a_head():
    state, problem = toy(Headless())
    with pytest.raises(UsageError, match="head"):
        replace(Headless(), partition="classifier").step(state, batches(), problem)


def test_skipped_round_reports_no_cosines():
    state, problem = toy(POGM())
    _, metrics = POGM().step(state, broken(1), problem)
    for name in ("cosine", "norm", "worst", "mixture", "gap"):
        assert metrics[name].isnan().all(), name


def test_worst_alignment_does_not_depend_on_rescale():
    values = {one_round(POGM(rescale=rescale))[2]["worst"].item() for rescale in ("none", "norm")}
    assert max(values) - min(values) < 1e-12


def test_classifier_partition_reports_no_cosine():
    assert "cosine" not in one_round(POGM(partition="classifier"))[2]


def test_weights_do_not_overflow():
    pogm = POGM(meta_lr=torch.tensor(1e308, dtype=torch.float64))  # tensors are not validated
    state, problem = toy(pogm, lr=1e3)
    after, _ = pogm.step(state, batches(), problem)
    assert_close(after.params, state.params, 0.0)
    assert after.memory["skipped"] == 1


def test_round_without_updates_is_counted():
    pogm = POGM(inner_optimizer="sgd", meta_lr=1.0)
    state, problem = toy(pogm, lr=1e-300)
    _, metrics = pogm.step(state, batches(), problem)
    assert metrics["skipped"] == 1, "trajectories too short to be more than rounding"


def test_ball_that_reaches_the_origin_gives_a_warning():
    with pytest.warns(KappaWarning, match="at least 1"):
        POGM(kappa=1.5)


class Headless(POGM):
    """POGM on a network with its last layer inside the featurizer."""

    def build(self, features, width, num_classes, num_domains):
        network = Algorithm().build(features, width, num_classes, num_domains)
        return type(network)(torch.nn.Sequential(network.features, network.head), torch.nn.Identity())
