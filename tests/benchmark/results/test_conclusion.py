"""The conclusion in words: one constructed case for each branch, and a real run."""

import doctest
import math

import pytest
import torch
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.results import conclusion as module
from pogm.benchmark.results.conclusion import conclusion, position
from pogm.benchmark.results.measurements import Measured, read_measurements
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import run
from pogm.diagnostics import Probe
from pogm.pareto import gramian

AGREEING = [[1.0, 0.1], [1.0, -0.1]]
OPPOSED = [[1.0, 0.0], [-0.5, 0.5]]  # conflict; a step that helps both exists
HOPELESS = [[1.0, 0.0], [-1.0, 0.0]]  # p* = 0


def rounds(*trajectories, step=None, targets=(), every=1, divergence=None):
    """Return measured rounds, one for each set of trajectories [K + T][P]; the default step is the mean of the K."""
    h = [torch.tensor(rows, dtype=torch.float64) for rows in trajectories]
    K = len(h[0]) - len(targets)
    steps = [rows[:K].mean(0) if step is None else torch.tensor(step, dtype=torch.float64) for rows in h]
    cosines = [torch.cosine_similarity(rows[:K], d[None], dim=1).tolist() for rows, d in zip(h, steps, strict=True)]
    ones = [[1.0] * K] * len(h)
    return Measured(
        tuple("ABCDEF"[:K]),
        tuple(targets),
        [every * (number + 1) for number in range(len(h))],
        cosines,
        ones,
        ones,
        [d.square().sum().item() for d in steps],
        [math.nan] * len(h),
        [gramian(rows).tolist() for rows in h],
        divergence,
    )


def said(*runs, label="ERM", **others):
    return conclusion({label: runs, **others})


def recommended(*runs, **options):
    last = said(*runs, **options)[-1]
    assert last.startswith("Recommendation: ")
    return last.removeprefix("Recommendation: ")


def test_example_in_the_docstring_is_correct():
    assert doctest.testmod(module).attempted == 1
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("found", [{}, {"ERM": []}])
def test_no_conclusion_without_measurements(found):
    (only,) = conclusion(found)
    assert "Nothing was measured" in only
    assert "--every" in only


def test_erm_is_recommended_for_one_training_domain():
    assert "use ERM" in recommended(rounds([[1.0, 0.0]]))


def test_no_conclusion_for_nonfinite_runs():
    (only,) = said(rounds([[math.nan, 0.0], [0.0, 1.0]]))
    assert "no conclusion" in only


@pytest.mark.parametrize(
    ("conflicting", "words"),
    [(0, "rarely: in 0 % of rounds"), (3, "sometimes: in 30 % of rounds"), (5, "often: in 50 % of rounds")],
)
def test_frequency_of_conflicts_is_given_in_words_and_percent(conflicting, words):
    text = said(rounds(*[OPPOSED] * conflicting, *[AGREEING] * (10 - conflicting)))[0]
    assert f"In training with ERM, domains conflict {words}" in text


def test_positive_share_is_not_rounded_to_zero():
    text = said(rounds(OPPOSED, *[AGREEING] * 300))[0]
    assert "in less than 1 % of rounds" in text
    text = said(rounds(AGREEING, *[OPPOSED] * 300))[0]
    assert "in more than 99 % of rounds" in text


def test_steps_against_a_domain_are_counted():
    assert "against no training domain in any measured round" in said(rounds(AGREEING))[1]
    assert "in 50 % of rounds" in said(rounds(AGREEING, OPPOSED, step=[1.0, 0.0]))[1]


def test_no_gain_is_expected_if_domains_agree():
    assert "has little to repair" in recommended(rounds(AGREEING))


@pytest.mark.parametrize(
    ("hopeless", "words"),
    [
        (0, "in every measured round"),
        (1, "in nearly all rounds (95 %)"),
        (8, "in most rounds (60 %)"),
        (14, "only in some rounds (30 %)"),
        (20, "almost never exists (0 % of rounds)"),
    ],
)
def test_frequency_of_steps_that_help_all_domains_is_given_in_words(hopeless, words):
    text = said(rounds(*[HOPELESS] * hopeless, *[OPPOSED] * (20 - hopeless)))[2]
    assert words in text
    assert "p* > 0" in text


def test_matching_is_unlikely_to_help_if_no_step_helps_all_domains():
    assert "unlikely to help" in recommended(rounds(*[HOPELESS] * 6, *[OPPOSED] * 4))


def test_no_gain_is_expected_if_the_step_of_erm_opposes_no_domain():
    mild = [[1.0, 0.0], [-0.1, 1.0]]
    assert "domains conflict often" in said(rounds(mild))[0]
    assert "ERM's step goes against no training domain" in recommended(rounds(mild))
    assert "ERM's step" not in recommended(rounds(mild), label="Fish"), "the step of ERM is unknown"


@pytest.mark.parametrize(
    ("target", "kind", "advice"),
    [
        ([0.3, 0.3], "is close to the convex hull", "try POGM. It has conflicts to repair"),
        ([1.0, 1.2], "is outside the convex hull", "POGM may help. The held-out domain is only partly covered"),
        ([-0.2, -1.0], "is far from the convex hull", "gradient matching is unlikely to help"),
    ],
)
def test_held_out_domain_is_classified_by_distance_and_cosine(target, kind, advice):
    m = rounds([*OPPOSED, target], step=[1.0, 0.0], targets=["T"])
    assert f"The held-out domain T {kind}" in said(m)[3]
    assert advice in recommended(m)


@pytest.mark.parametrize(
    ("distance", "cosine", "kind"),
    [
        (0.0, 1.0, "near"),
        (0.49, 0.9, "near"),
        (0.5, 0.9, "between"),
        (0.93, 0.4, "between"),
        (0.93, 0.29, "far"),
        (1.0, 0.9, "far"),
        (0.9, math.nan, "between"),
    ],
)
def test_thresholds_of_positions(distance, cosine, kind):
    assert position(distance, cosine) == kind


def test_each_held_out_domain_is_named():
    near, far = [0.3, 0.3], [-0.2, -1.0]
    both = [
        rounds([*OPPOSED, near], step=[1.0, 0.0], targets=["S"]),
        rounds([*OPPOSED, far], step=[1.0, 0.0], targets=["T"]),
    ]
    sentences = said(*both)
    assert sum("held-out domain S is close" in text for text in sentences) == 1
    assert sum("held-out domain T is far" in text for text in sentences) == 1
    assert "unlikely to help on T" in sentences[-1]
    two = rounds([*OPPOSED, far, [-0.3, -1.0]], step=[1.0, 0.0], targets=["S", "T"])
    assert "the held-out domains are far" in recommended(two)


def test_missing_target_names_the_option():
    m = rounds(OPPOSED, step=[1.0, 0.0])
    assert "pass --target" in said(m)[3]
    assert "Whether the held-out domain gains is unknown" in recommended(m)


def pairs(*values):
    return [[[0.0, value], [value, 0.0]] for value in values]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.001] * 6, "0.001 nats (KL divergence, small); it stays about the same during training"),
        ([0.02] * 2 + [0.03] * 2 + [0.04] * 2, "0.03 nats (KL divergence, moderate); it grows during training"),
        ([0.8] * 2 + [0.4] * 2 + [0.3] * 2, "0.5 nats (KL divergence, large); it falls during training"),
        ([0.8] * 3, "0.8 nats (KL divergence, large)."),
    ],
)
def test_divergence_has_a_size_and_a_trend(values, words):
    sentences = said(rounds(*[OPPOSED] * len(values), divergence=pairs(*values)))
    assert sum(words in text for text in sentences) == 1


def test_missing_divergence_names_the_option():
    assert any("--divergence measures it" in text for text in said(rounds(OPPOSED)))


@pytest.mark.parametrize(
    ("erm", "pogm", "words"),
    [
        ([1.0, 0.0], [0.45, 1.0], "lower than with ERM"),
        ([1.0, 0.0], [2.0, 0.0], "about the same as with ERM"),
        ([0.45, 1.0], [1.0, 0.0], "higher than with ERM"),
    ],
)
def test_variance_of_pogm_is_compared_with_that_of_erm(erm, pogm, words):
    sentences = said(rounds(OPPOSED, step=erm), POGM=[rounds(OPPOSED, step=pogm)])
    assert sum(f"is {words}: " in text for text in sentences) == 1


def test_variance_is_compared_with_erm_with_the_same_modifiers():
    m = rounds(OPPOSED, step=[1.0, 0.0])
    text = " ".join(conclusion({"ERM": [m], "ERM + Mixup": [m], "POGM + Mixup": [m]}))
    assert "is about the same as with ERM + Mixup: " in text
    assert text.count("the variance over domains") == 1


@pytest.mark.parametrize("label", ["ERM", "POGM", "Fish"])
def test_conclusion_asks_for_erm_and_pogm_if_one_is_missing(label):
    assert any("Measure ERM and POGM together" in text for text in said(rounds(OPPOSED), label=label))


def test_all_runs_are_used_without_erm():
    text = conclusion({"Fish": [rounds(AGREEING)], "POGM": [rounds(OPPOSED)]})[0]
    assert text.startswith("On average over Fish, POGM, domains conflict often: in 50 % of rounds")


def test_unmeasured_rounds_are_mentioned():
    assert any("one round in 10 was measured" in text for text in said(rounds(OPPOSED, OPPOSED, every=10)))
    assert not any("was measured. For" in text for text in said(rounds(OPPOSED, OPPOSED)))


def test_conclusion_of_a_real_run_has_every_part(tmp_path):
    probe = Probe(every=1, target=True, divergence=True)
    for algorithm in (ERM(), POGM()):
        one = trial(algorithm, steps=9, evaluate_every=4, test_domains=(3,), probe=probe)
        run(one, tmp_path / one.id)
    found = {one.label: [read_measurements(one)] for one in read_runs(tmp_path)}
    text = " ".join(conclusion(found))
    for words in (
        "domains conflict",
        "p* > 0",
        "held-out domain 45",
        "nats",
        "lower than with ERM",
        "Recommendation: ",
    ):
        assert words in text, words
    assert "undefined" not in text
    assert "nan" not in text
