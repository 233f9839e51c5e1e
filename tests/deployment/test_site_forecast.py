"""The forecast for a new site: known values, and the coverage of its interval for simulated sites."""

import numpy as np
import pytest
from scipy.stats import norm, t

from pogm.deployment.forecast import compare_best, forecast


def test_interval_is_the_prediction_interval_of_students_distribution():
    found = forecast([0.7, 0.72, 0.75, 0.73])
    assert found.mean == pytest.approx(0.725)
    reach = t.ppf(0.975, 3) * np.std([0.7, 0.72, 0.75, 0.73], ddof=1) * np.sqrt(1.25)
    assert (found.low, found.high) == pytest.approx((0.725 - reach, 0.725 + reach))
    assert "rests on 4 sites only" in found.text()


def test_best_two_algorithms_are_compared_by_site():
    forecasts = {
        "ERM": forecast([0.7, 0.8, 0.9]),
        "Fish": forecast([0.72, 0.81, 0.93]),
        "IRM": forecast([0.1, 0.2, 0.3]),
    }
    reach = 100 * t.ppf(0.975, 2) * np.std([0.02, 0.01, 0.03], ddof=1) / np.sqrt(3)
    text = compare_best(forecasts)
    assert text.startswith(
        f"Fish and ERM, paired by site: +2.00 points, 95 % interval {2 - reach:+.2f} to {2 + reach:+.2f} "
    )
    assert "The interval contains 0" in text
    clear = compare_best({"ERM": forecast([0.7, 0.8, 0.9]), "Fish": forecast([0.72, 0.82, 0.921])})
    assert "contains 0" not in clear


def test_two_algorithms_with_one_known_site_are_not_compared():
    """A regression with two sites has one, if the other one has equal targets."""
    text = compare_best({"ERM": forecast([0.3], "regression"), "Fish": forecast([0.4], "regression")})
    assert text == "Fish and ERM can be compared at one site only, which says nothing about their order."


def test_interval_is_cut_at_0_and_1():
    assert forecast([0.2, 0.9]).low == 0.0
    assert forecast([0.99, 0.9]).high == 1.0
    assert (forecast([0.9]).low, forecast([0.9]).high) == (0.0, 1.0)
    assert "One held-out site" in forecast([0.9]).text()


def test_interval_is_at_least_as_wide_as_chance_makes_it():
    """Three sites on which all of 12 images are correct: 38 of 40 with two correct and two wrong ones added."""
    found = forecast([1.0, 1.0, 1.0], counts=[12, 12, 12])
    assert found.low == pytest.approx(1 - norm.ppf(0.975) * np.sqrt(0.95 * 0.05 / 12) * np.sqrt(4 / 3))
    assert found.high == 1.0
    far_apart = [0.6, 0.9, 0.7]
    assert forecast(far_apart, counts=[100, 100, 100]) == forecast(far_apart)


@pytest.mark.parametrize("sites", [2, 3, 4, 6, 10, 20])
@pytest.mark.parametrize(("mean", "concentration"), [(0.8, 20), (0.9, 40), (0.6, 10)])
def test_interval_covers_a_further_site_in_about_95_percent(sites, mean, concentration):
    """Accuracies of sites follow a beta distribution, and each is measured on 200 images."""
    draw = np.random.default_rng(sites)
    covered = 0
    for _ in range(600):
        true = draw.beta(mean * concentration, (1 - mean) * concentration, sites + 1)
        measured = draw.binomial(200, true) / 200
        found = forecast(measured[:-1].tolist(), counts=[200] * sites)
        covered += found.low <= measured[-1] <= found.high
    assert 0.92 <= covered / 600 <= 0.995
