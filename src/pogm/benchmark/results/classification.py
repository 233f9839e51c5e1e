"""Metrics of a classifier on labelled images, with confidence intervals from the number of images.

They are computed at the end of every run, so they use numpy and not scikit-learn, whose functions take 20 times as long
for a few hundred images. The tests compare both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pogm._system.errors import UsageError

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution, for intervals of 95 %
BINS = 15  # of the expected calibration error
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0
SUM_TOLERANCE = 1e-3  # of the sum of probabilities, which may come from float16
FOLDS = 2  # of the images, to fit a temperature on one part and to measure it on the other


class Proportion(NamedTuple):
    """A proportion with a confidence interval of 95 %."""

    value: float  # NaN if n = 0
    low: float
    high: float
    n: int  # number of images

    def to_json(self) -> dict[str, Any]:
        """Return value, interval and n; None for NaN."""
        return {"value": _finite(self.value), "low": _finite(self.low), "high": _finite(self.high), "n": self.n}

    def text(self) -> str:
        """Return percentages such as ``83.3 [55.2, 95.3]``."""
        if math.isnan(self.value):
            return "-"
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True)
class ClassificationMetrics:
    """Metrics of one classifier on one set of images.

    Means over classes (balanced accuracy, macro F1) are over the classes that have images.
    """

    classes: tuple[str, ...]  # names of all classes that the model knows
    n: int  # number of images
    accuracy: Proportion  # share of the images that are classified correctly, with the Wilson interval
    balanced_accuracy: Proportion  # mean of the recalls, with an interval from those of the recalls
    macro_f1: float  # mean of the F1 scores
    auroc: float  # area under the ROC curve, mean over classes of one class against the rest; NaN if undefined
    without_auroc: tuple[str, ...]  # classes for which the AUROC is undefined: no images of them, or only of them
    recalls: tuple[Proportion, ...]  # recall of each class, with the Wilson interval
    confusion: tuple[tuple[int, ...], ...]  # number of images by true class (row) and predicted class (column)
    ece: float  # expected calibration error, from 0 to 1
    nll: float  # negative log-likelihood, in nats per image

    @property
    def missing(self) -> tuple[str, ...]:
        """Classes without images."""
        return tuple(name for name, recall in zip(self.classes, self.recalls, strict=True) if not recall.n)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with all digits; what is undefined is None."""
        return {
            "n": self.n,
            "accuracy": self.accuracy.to_json(),
            "balanced_accuracy": self.balanced_accuracy.to_json(),
            "macro_f1": self.macro_f1,
            "auroc": _finite(self.auroc),
            "without_auroc": list(self.without_auroc),
            "recall": {name: recall.to_json() for name, recall in zip(self.classes, self.recalls, strict=True)},
            "confusion": {"classes": list(self.classes), "counts": [list(row) for row in self.confusion]},
            "ece": self.ece,
            "nll": self.nll,
        }


def classification_metrics(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, classes: Sequence[str]
) -> ClassificationMetrics:
    """Return the metrics of predicted probabilities.

    Args:
        probabilities: [N, C] probability of each class.
        labels: [N] index of the true class.
        classes: [C] names of the classes.

    Raises:
        UsageError: The shapes do not fit, there are no images, or the values are not probabilities.
    """
    p, y = _check(probabilities, labels, len(classes))
    count = len(classes)
    confusion = np.bincount(y * count + p.argmax(1), minlength=count**2).reshape(count, count)
    right, counts, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    recalls = tuple(wilson_interval(int(k), int(n)) for k, n in zip(right, counts, strict=True))
    present = counts > 0
    areas = {name: area for i, name in enumerate(classes) if (area := _auroc(p[:, i], y == i)) is not None}
    true = np.maximum(p[np.arange(len(y)), y], np.finfo(np.float64).eps)  # the NLL stays finite, as in scikit-learn
    return ClassificationMetrics(
        classes=tuple(classes),
        n=len(y),
        accuracy=wilson_interval(int(right.sum()), len(y)),
        balanced_accuracy=_mean_proportion([recall for recall in recalls if recall.n]),
        macro_f1=float((2 * right[present] / (counts + predicted)[present]).mean()),
        auroc=float(np.mean(list(areas.values()))) if areas else math.nan,
        without_auroc=tuple(name for name in classes if name not in areas),
        recalls=recalls,
        confusion=tuple(tuple(map(int, row)) for row in confusion),
        ece=calibration_error(p, y),
        nll=float(abs(np.log(true).mean())),  # not −0
    )


def wilson_interval(successes: int, n: int) -> Proportion:
    """Return a proportion with its Wilson score interval (Wilson, 1927), which is valid also for few images."""
    if not n:
        return Proportion(math.nan, math.nan, math.nan, 0)
    p, shrink = successes / n, 1 / (1 + Z**2 / n)
    centre = shrink * (p + Z**2 / (2 * n))
    half = shrink * Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    low = 0.0 if successes == 0 else max(centre - half, 0.0)  # exact in theory, not in floating point
    return Proportion(p, low, 1.0 if successes == n else min(centre + half, 1.0), n)


def _mean_proportion(parts: Sequence[Proportion]) -> Proportion:
    """Return the mean of independent proportions; the interval combines theirs (MOVER: Zou and Donner, 2008)."""
    value = math.fsum(part.value for part in parts) / len(parts)
    below = math.hypot(*(part.value - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.value for part in parts)) / len(parts)
    return Proportion(value, max(value - below, 0.0), min(value + above, 1.0), sum(part.n for part in parts))


def _auroc(score: Array, is_positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve from the sum of ranks (Mann and Whitney, 1947).

    Equal scores have their mean rank. None if all images, or none, are positive.
    """
    positive = int(is_positive.sum())
    if positive in (0, len(score)):
        return None
    _, position, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = counts.cumsum() - (counts - 1) / 2
    excess = ranks[position[is_positive]].sum() - positive * (positive + 1) / 2
    return float(excess / (positive * (len(score) - positive)))


def calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    r"""Return the expected calibration error (Guo et al., 2017).

    .. math:: \sum_b \frac{n_b}{N} |\operatorname{accuracy}_b - \operatorname{confidence}_b|

    The bins b are 15 intervals (low, high] of equal width of the confidence, which is the largest probability.

    Args:
        probabilities: [N, C] probability of each class.
        labels: [N] index of the true class.
    """
    p, y = _check(probabilities, labels)
    confidence, is_right = p.max(1), p.argmax(1) == y
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the temperature T that minimises the negative log-likelihood of softmax(logits / T).

    Temperature scaling (Guo et al., 2017) with one scalar does not change which class is predicted. Fit it on
    validation images, not on the images that measure the calibration. The problem is convex in 1/T.

    Args:
        logits: [N, C] logits, or logarithms of probabilities.
        labels: [N] index of the true class.

    Returns:
        The temperature, between 0.05 and 20. A limit is returned if the optimum is outside; if all predictions are
        right by far, it is at 0.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    _check(softmax(z), y)
    z = z - z.max(1, keepdims=True)
    true = z[np.arange(len(y)), y]

    def derivative(scale: float) -> float:
        """Return the derivative of the mean NLL with respect to the scale 1/T, which increases with it."""
        return float(((softmax(z * scale) * z).sum(1) - true).mean())

    return 1 / _find_root(derivative, 1 / HIGHEST_TEMPERATURE, 1 / LOWEST_TEMPERATURE)


def _find_root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of an increasing function by bisection, or the nearest limit."""
    if increasing(low) >= 0:
        return low
    if increasing(high) <= 0:
        return high
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return math.sqrt(low * high)


def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> Array:
    """Return softmax(logits / temperature) over the last axis, in float64."""
    z = np.asarray(logits, np.float64) / temperature
    powers = np.exp(z - z.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


class TemperatureScaling(NamedTuple):
    """Calibration error before and after temperature scaling."""

    temperature: float
    before: float  # expected calibration error at temperature 1
    after: float  # expected calibration error at the temperature

    def to_json(self) -> dict[str, float]:
        """Return the numbers as a JSON object."""
        return self._asdict()


def scale_temperature(
    logits: npt.ArrayLike, labels: npt.ArrayLike, temperature: float | None = None
) -> TemperatureScaling:
    """Return the calibration error before and after temperature scaling.

    Args:
        logits: [N, C] logits, or logarithms of probabilities.
        labels: [N] index of the true class.
        temperature: A temperature from other images. None: fit it on these images. Then the error after scaling is
            cross-fitted, so that it is not too optimistic: each half of the images is scaled by the temperature of the
            other half.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    before = calibration_error(softmax(z), y)
    if temperature is not None:
        return TemperatureScaling(temperature, before, calibration_error(softmax(z, temperature), y))
    fitted = fit_temperature(z, y)
    scaled, fold = np.empty_like(z), _assign_folds(y)
    for number in range(FOLDS):
        rest = fold != number
        scaled[~rest] = softmax(z[~rest], fit_temperature(z[rest], y[rest]) if rest.any() else 1.0)
    return TemperatureScaling(fitted, before, calibration_error(scaled, y))


def _assign_folds(labels: Labels) -> Labels:
    """Return the fold of each image. The images of every class alternate between the folds."""
    order = np.argsort(labels, kind="stable")
    fold = np.empty_like(labels)
    fold[order] = np.arange(len(labels)) % FOLDS
    return fold


def _check(probabilities: npt.ArrayLike, labels: npt.ArrayLike, classes: int | None = None) -> tuple[Array, Labels]:
    """Return probabilities, normalised exactly, and labels."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    shape = f"[N, {'C' if classes is None else classes}]"
    if p.ndim != 2 or y.shape != p.shape[:1] or p.shape[1] != (classes or p.shape[1]) or not p.size:
        raise UsageError(
            f"Expected probabilities of shape {shape} and labels of shape [N] with N of at least 1; found "
            f"{list(p.shape)} and {list(y.shape)}. Give one row and one label for each image."
        )
    if not np.isfinite(p).all() or p.min() < 0 or np.abs(p.sum(1) - 1).max() > SUM_TOLERANCE:
        raise UsageError(
            "Expected probabilities that are at least 0 and have the sum 1 for each image; found others. "
            "Apply softmax to logits first."
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= p.shape[1]:
        raise UsageError(
            f"Expected labels as integers from 0 to {p.shape[1] - 1}; found {y.dtype} from {y.min()} to {y.max()}. "
            "Give the index of the class of each image."
        )
    return p / p.sum(1, keepdims=True), y.astype(np.int64)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
