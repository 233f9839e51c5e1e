"""Metrics of a classifier: known values, scikit-learn, and properties for any predictions."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from pogm._system.errors import UsageError
from pogm.benchmark.results.classification import (
    calibration_error,
    classification_metrics,
    fit_temperature,
    scale_temperature,
    softmax,
    wilson_interval,
)
from pogm.benchmark.results.classification_tables import confusion_table, metrics_table, recall_table

NAMES = ("a", "b", "c", "d")


def predictions(seed: int, n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random logits, which favour the true class, and labels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, n)
    logits = draw.normal(size=(n, classes))
    logits[np.arange(n), labels] += 1
    return logits, labels


def test_wilson_interval_has_the_published_values():
    found = wilson_interval(15, 20)
    assert found.value == 0.75
    assert (found.low, found.high) == pytest.approx((0.531299, 0.888138), abs=1e-6)
    assert wilson_interval(0, 10)[:3] == pytest.approx((0, 0, 0.277533), abs=1e-6)  # z² / (n + z²)
    assert wilson_interval(10, 10)[:3] == pytest.approx((1, 0.722467, 1), abs=1e-6)
    assert math.isnan(wilson_interval(0, 0).value)


@pytest.mark.parametrize(("n", "p"), [(10, 0.5), (40, 0.9), (100, 0.97)])
def test_wilson_interval_covers_the_proportion(n, p):
    draws = np.random.default_rng(0).binomial(n, p, 4000)
    covered = np.mean([wilson_interval(int(k), n).low <= p <= wilson_interval(int(k), n).high for k in draws])
    assert 0.92 < covered < 0.99


def test_interval_of_the_balanced_accuracy_covers_it():
    draw, recalls, counts = np.random.default_rng(1), (0.9, 0.6, 0.75), (15, 40, 100)
    covered = 0
    for _ in range(400):
        labels = np.repeat(range(3), counts)
        is_right = draw.random(len(labels)) < np.repeat(recalls, counts)
        predicted = np.where(is_right, labels, (labels + 1) % 3)
        found = classification_metrics(np.eye(3)[predicted], labels, NAMES[:3]).balanced_accuracy
        covered += found.low <= 0.75 <= found.high
    assert 0.91 < covered / 400 < 0.99


def test_metrics_of_an_example_computed_by_hand():
    p = [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]
    found = classification_metrics(p, [0, 0, 1, 1], ("no", "yes"))
    assert found.accuracy.value == 0.75
    assert found.confusion == ((2, 0), (1, 1))
    assert [recall.value for recall in found.recalls] == [1.0, 0.5]
    assert found.balanced_accuracy.value == 0.75
    assert found.macro_f1 == pytest.approx((0.8 + 2 / 3) / 2)
    assert found.auroc == pytest.approx(3 / 4)  # of four pairs, (0.4, 0.2) is in the wrong order
    assert found.nll == pytest.approx(-(math.log(0.9) + math.log(0.6) + math.log(0.7) + math.log(0.2)) / 4)
    # Four images in four bins: |1 - 0.9|, |1 - 0.6|, |1 - 0.7| and |0 - 0.8|.
    assert found.ece == pytest.approx((0.1 + 0.4 + 0.3 + 0.8) / 4)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_metrics_agree_with_scikit_learn(classes):
    logits, labels = predictions(classes, 200, classes)
    p = softmax(logits)
    found = classification_metrics(p, labels, NAMES[:classes])
    predicted = p.argmax(1)
    assert found.accuracy.value == sklearn.metrics.accuracy_score(labels, predicted)
    assert found.balanced_accuracy.value == pytest.approx(sklearn.metrics.balanced_accuracy_score(labels, predicted))
    assert found.macro_f1 == pytest.approx(sklearn.metrics.f1_score(labels, predicted, average="macro"))
    score = p[:, 1] if classes == 2 else p
    assert found.auroc == pytest.approx(sklearn.metrics.roc_auc_score(labels, score, multi_class="ovr"))
    assert found.nll == pytest.approx(sklearn.metrics.log_loss(labels, p))
    assert np.array_equal(found.confusion, sklearn.metrics.confusion_matrix(labels, predicted))


def test_equal_scores_count_half_in_the_auroc():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 300)
    second = np.clip(np.round(0.3 + 0.3 * labels + draw.normal(0, 0.2, 300), 1), 0, 1)  # eleven values, many ties
    found = classification_metrics(np.stack([1 - second, second], 1), labels, NAMES[:2])
    assert found.auroc == pytest.approx(sklearn.metrics.roc_auc_score(labels, second))
    assert classification_metrics(np.full((300, 2), 0.5), labels, NAMES[:2]).auroc == 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 4))
def test_properties_of_any_predictions(seed, n, classes):
    logits, labels = predictions(seed, n, classes)
    found = classification_metrics(softmax(logits), labels, NAMES[:classes])
    assert sum(map(sum, found.confusion)) == n == found.n
    for proportion in (found.accuracy, found.balanced_accuracy, *found.recalls):
        if proportion.n:
            assert 0 <= proportion.low <= proportion.value <= proportion.high <= 1
    assert 0 <= found.ece <= 1
    assert found.nll >= 0
    assert set(found.missing) <= set(found.without_auroc)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()
    order = np.random.default_rng(seed).permutation(n)
    shuffled = classification_metrics(softmax(logits)[order], labels[order], NAMES[:classes])
    assert shuffled.accuracy == found.accuracy
    assert (shuffled.ece, shuffled.nll) == pytest.approx((found.ece, found.nll))


def test_classes_without_images_are_left_out_of_means_and_named():
    p = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    found = classification_metrics(p, [0, 1, 1], NAMES[:3])
    assert found.missing == found.without_auroc == ("c",)
    assert found.balanced_accuracy.value == 0.75
    assert found.macro_f1 == pytest.approx((1 + 2 / 3) / 2)
    table = metrics_table({"site": found}).text()
    assert "site: no images of c." in table
    assert "AUROC without c" in table
    only = classification_metrics([[0.7, 0.3]], [0], ("a", "b"))
    assert math.isnan(only.auroc)
    assert only.to_json()["auroc"] is None
    assert only.without_auroc == ("a", "b")


def calibrated(n: int, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits whose softmax is the distribution of the labels, multiplied by a number."""
    draw = np.random.default_rng(0)
    logits = 2 * draw.normal(size=(n, 3))
    labels = (softmax(logits).cumsum(1) < draw.random((n, 1))).sum(1)
    return sharpness * logits, labels


def test_calibrated_predictions_have_almost_no_calibration_error():
    logits, labels = calibrated(50_000)
    assert calibration_error(softmax(logits), labels) < 0.01
    assert fit_temperature(logits, labels) == pytest.approx(1, abs=0.02)


def test_temperature_scaling_repairs_confidence_that_is_too_high():
    logits, labels = calibrated(20_000, sharpness=3)
    found = scale_temperature(logits, labels)
    assert found.temperature == pytest.approx(3, rel=0.03)
    assert found.before > 0.1
    assert found.after < 0.015
    given_temperature = scale_temperature(logits, labels, 3.0)
    assert given_temperature.before == found.before
    assert given_temperature.after < 0.015
    # Logarithms of probabilities serve as well as logits.
    assert fit_temperature(np.log(softmax(logits)), labels) == pytest.approx(found.temperature)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 4))
def test_fitted_temperature_minimises_the_likelihood_and_keeps_predictions(seed, n, classes):
    logits, labels = predictions(seed, n, classes)
    fitted = fit_temperature(logits, labels)

    def nll(temperature: float) -> float:
        return float(-np.log(softmax(logits, temperature)[np.arange(n), labels]).mean())

    assert 0.05 <= fitted <= 20.0001
    assert all(nll(fitted) <= nll(other) + 1e-9 for other in np.geomspace(0.05, 20, 50))
    assert np.array_equal(softmax(logits, fitted).argmax(1), logits.argmax(1))


def test_temperature_of_perfect_or_hopeless_predictions_is_a_limit():
    assert fit_temperature([[9.0, 0.0], [0.0, 9.0]], [0, 1]) == pytest.approx(0.05)
    assert fit_temperature([[9.0, 0.0], [0.0, 9.0]], [1, 0]) == pytest.approx(20)
    assert scale_temperature([[9.0, 0.0]], [0]).temperature == pytest.approx(0.05)  # one image


def test_confidence_on_the_edge_of_a_bin_belongs_to_the_lower_bin():
    p = [[0.8, 0.2], [0.75, 0.25]]  # 0.8 = 12/15: both are in (11/15, 12/15]
    assert calibration_error(p, [0, 1]) == pytest.approx(abs(1 - 0.8 - 0.75) / 2)


@pytest.mark.parametrize(
    ("p", "labels", "message"),
    [
        ([], [], "at least 1"),
        ([[0.5, 0.5]], [0, 1], r"found \[1, 2\] and \[2\]"),
        ([[0.5, 0.3, 0.2]], [0], r"\[N, 2\]"),
        ([[2.0, -1.0]], [0], "Apply softmax"),
        ([[0.5, float("nan")]], [0], "Apply softmax"),
        ([[3.0, 1.0]], [0], "Apply softmax"),
        ([[0.5, 0.5]], [2], "from 0 to 1; found int64 from 2"),
        ([[0.5, 0.5]], [0.0], "integers"),
    ],
)
def test_values_that_are_not_probabilities_and_labels_are_refused(p, labels, message):
    with pytest.raises(UsageError, match=message):
        classification_metrics(p, labels, ("a", "b"))


def test_tables_show_numbers_of_images_and_intervals():
    logits, labels = predictions(0, 30, 3)
    found = classification_metrics(softmax(logits), labels, NAMES[:3])
    first = metrics_table({"north": found, "south": found}).text()
    assert found.accuracy.text() in first
    assert " 30 " in first
    recall = recall_table(found).text()
    assert found.recalls[1].text() in recall
    rows = json.loads(confusion_table(found).json())["rows"]
    assert [list(row.values()) for row in rows.values()] == [list(row) for row in found.confusion]
