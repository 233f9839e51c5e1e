"""Measurements of a probe, against their definitions."""

import math
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from rounds import trajectories
from support import K, batches, toy
from watching import OTHER, alone, flat, watched

from pogm import DANN, ERM, POGM, Fish, pareto
from pogm._system.errors import UsageError
from pogm.diagnostics import Probe
from pogm.diagnostics.measurements import Round
from pogm.diagnostics.probe import PROBED, mean_cosines, round_means
from pogm.pareto import gramian

every_round = Probe(every=1)


def cosine(a, b):
    return torch.cosine_similarity(a, b, dim=0).item()


@pytest.mark.parametrize("algorithm", [ERM(), Fish()])
def test_measurements_are_those_of_copies_with_their_own_adam(algorithm):
    measured, states = watched(algorithm, every_round, rounds=3)
    assert measured["round"] == [1, 2, 3]
    for domain in range(K):
        for number, copy in enumerate(alone(algorithm, states, domain)):
            before, after = states[number].params, states[number + 1].params
            step, trajectory = flat(after, before), flat(copy, before)
            assert measured["cosine"][number][domain] == pytest.approx(cosine(trajectory, step))
            assert measured["difference"][number][domain] == pytest.approx(flat(copy, after).square().sum().item())
            layers = sum((copy[name] - leaf).norm().item() for name, leaf in after.items())
            assert measured["layer_difference"][number][domain] == pytest.approx(layers)
            assert measured["magnitude"][number] == pytest.approx(step.square().sum().item())
            assert measured["gramian"][number][domain][domain] == pytest.approx(trajectory.square().sum().item())


def test_copies_of_pogm_are_measured_directly():
    pogm = POGM(inner_steps=3)
    measured, _ = watched(pogm, every_round)
    torch.testing.assert_close(torch.tensor(measured["gramian"][0], dtype=torch.float64), gramian(trajectories(pogm)))


def test_angles_of_the_probe_equal_those_that_pogm_reports():
    pogm = POGM(inner_steps=2)
    measured, states = watched(pogm, every_round, rounds=3)
    _, problem = toy(pogm)
    for number, state in enumerate(states[:-1]):
        _, metrics = pogm.step(state, batches(2, seed=number), problem)
        assert measured["cosine"][number] == pytest.approx(metrics["cosine"].tolist())


def test_measurements_of_pogm_do_not_depend_on_other_measured_rounds():
    """The copies have the optimizers of the algorithm, which are updated in every round."""
    all_rounds, _ = watched(POGM(), Probe(every=1, lag=4), rounds=8)
    some, _ = watched(POGM(), Probe(every=4, lag=4), rounds=8)
    assert some["round"] == [4, 8]
    assert some["cosine"] == [all_rounds["cosine"][3], all_rounds["cosine"][7]]
    assert some["invariant"] == [all_rounds["invariant"][3], all_rounds["invariant"][7]]


def test_copy_of_a_single_domain_equals_erm():
    measured, _ = watched(ERM(), every_round, rounds=2, domains=1)
    assert measured["cosine"] == [[pytest.approx(1)]] * 2
    assert measured["difference"] == measured["layer_difference"] == [[0.0]] * 2


def test_only_weights_that_predict_are_measured():
    """The discriminator of DANN changes, but is not measured."""
    measured, (before, after) = watched(DANN(), every_round)
    assert any(not torch.equal(after.params[name], before.params[name]) for name in after.params if "disc" in name)
    assert measured["magnitude"] == [pytest.approx(flat(after.params, before.params).square().sum().item())]


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), POGM(inner_state="reset")])
def test_held_out_domain_is_one_more_row_of_the_gramian(algorithm):
    measured, states = watched(algorithm, Probe(every=1, target=True), rounds=3)
    without, _ = watched(algorithm, every_round, rounds=3)
    rounds = range(1) if algorithm == POGM(inner_state="reset") else range(3)  # the reference Adam is never reset
    for number in rounds:
        trajectory = flat(alone(algorithm, states, 0, seed=OTHER)[number], states[number].params)
        assert measured["gramian"][number][K][K] == pytest.approx(trajectory.square().sum().item())
    for found, expected in zip(measured["gramian"], without["gramian"], strict=True):
        torch.testing.assert_close(torch.tensor(found)[:K, :K], torch.tensor(expected))
    assert measured["cosine"] == without["cosine"]


def test_reset_optimizers_apply_to_held_out_domains():
    """The same minibatch twice, with the same weights: an Adam that was reset takes the same step."""
    pogm, probe = POGM(inner_state="reset"), Probe(every=1, target=True)
    state, problem = toy(pogm)
    memory, seen = probe.start(pogm, state, problem, 1, 2), None
    for _ in range(2):
        seen = Round(pogm, problem, state, pogm.step(state, batches(), problem)[0], batches(), batches(domains=1))
        memory = probe.measure(memory, seen)
    first, second = probe.read(memory["rounds"])["gramian"]
    assert first == second


def test_cosines_are_undefined_without_a_step():
    state, problem = toy(ERM())
    memory = every_round.start(ERM(), state, problem, 1, 1)
    still = state._replace(step=state.step + 1)
    measured = every_round.read(
        every_round.measure(memory, Round(ERM(), problem, state, still, batches(), []))["rounds"]
    )
    assert all(map(math.isnan, measured["cosine"][0]))
    assert math.isnan(measured["invariant"][0])
    assert measured["magnitude"] == [0.0]
    assert min(measured["difference"][0]) > 0


def test_mean_of_cosines_ignores_undefined_values():
    means = mean_cosines({"cosine": [[1.0, math.nan, 0.5], [0.0, math.nan, math.nan]]})
    assert means[0] == means[2] == 0.5
    assert math.isnan(means[1])
    assert mean_cosines({"cosine": []}) == []


@pytest.mark.parametrize("algorithm", [ERM(), POGM()])
def test_metrics_of_a_record_are_computed_from_the_trajectories(algorithm):
    measured, states = watched(algorithm, Probe(every=1, target=True, divergence=True), rounds=3)
    copies = [alone(algorithm, states, domain) for domain in range(K)]
    products, variances, relatives = [], [], []
    for number, (before, after) in enumerate(pairwise(states)):
        h = torch.stack([flat(copy[number], before.params) for copy in copies])
        step = flat(after.params, before.params)
        products.append(sum(h[i] @ h[j] for i in range(K) for j in range(K) if i != j).item())
        aligned = h @ step
        variances.append((aligned - aligned.mean()).square().mean().item())
        relatives.append(variances[-1] / (step.square().sum() * h.square().sum(1).mean()).item())
    means = round_means(measured)
    assert tuple(means) == PROBED
    assert means["gip"] == pytest.approx(fmean(products))
    assert means["alignment_variance"] == pytest.approx(fmean(variances))
    assert means["alignment_variance_relative"] == pytest.approx(fmean(relatives))
    pairs = [matrix[i][j] for matrix in measured["divergence"] for i in range(K) for j in range(K) if i != j]
    assert means["divergence"] == pytest.approx(fmean(pairs))
    G = torch.tensor(measured["gramian"], dtype=torch.float64)
    solved = [(pareto.solve(part, 0.5).worst / part.diagonal().mean()).item() for part in G[:, :K, :K]]
    assert means["p_star"] == pytest.approx(fmean(solved))
    assert means["hull"] > 0
    assert abs(means["hull_cosine"]) <= 1


def test_metrics_of_a_record_without_a_measured_round_are_undefined():
    means = round_means(watched(ERM(), Probe(every=5, divergence=True), rounds=2)[0])
    assert tuple(means) == PROBED[:5]
    assert all(math.isnan(means[name]) for name in PROBED[1:5])


def test_rounds_beyond_the_capacity_are_dropped():
    measured, _ = watched(ERM(), every_round, rounds=4, capacity=3)
    expected, _ = watched(ERM(), every_round, rounds=3)
    assert str(measured) == str(expected)


def test_probe_that_never_measures_has_no_memory():
    state, problem = toy(ERM())
    assert Probe().start(ERM(), state, problem, 1, 0) == {}
    assert not any(Probe().measures(number) for number in range(20))


def test_measured_rounds_and_capacity():
    probe = Probe(every=5)
    assert [number for number in range(1, 21) if probe.measures(number)] == [5, 10, 15, 20]
    assert probe.capacity([1, 11, 20]) == 2
    assert probe.capacity([0, 4]) == 0
    assert Probe().capacity([1, 300]) == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"every": -1}, "Probe.every to be a whole number of at least 0.*found -1"),
        ({"every": 1.5}, "Probe.every to be a whole number"),
        ({"lag": 0}, "Probe.lag to be a whole number of at least 1.*found 0"),
        ({"every": 3}, "a multiple of 3 rounds.*found 10. Choose a multiple of 3, for example 12, or the cyclic lag"),
        ({"cyclic": "sometimes"}, "Probe.cyclic to be true or false"),
    ],
)
def test_invalid_probe_is_refused(values, message):
    with pytest.raises(UsageError, match=message):
        Probe(**values)


@pytest.mark.parametrize(("every", "lag"), [(0, 10), (1, 10), (3, 12), (10, 10), (25, 25)])
def test_default_lag_is_a_multiple_of_the_interval(every, lag):
    assert Probe.each(every) == Probe(every, lag)


def test_cyclic_lag_need_not_be_a_multiple():
    assert Probe(every=3, cyclic=True).lag == 10
