"""Analysis of samples from several sites: will a model work at the next site, and what would help?

All numbers come from logistic regression on features, so the analysis takes minutes on a CPU. Features of images are
the outputs of a fixed network; features of a table are its encoded columns. The forecast is for such a classifier. A
network that is trained on the images is usually better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pogm.benchmark.results.table import Column, Row, Table, Tabular
from pogm.deployment.forecast import FEW_SITES, Forecast, forecast
from pogm.pareto import gramian
from pogm.pareto.hull import hull_positions

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

FOLDS = 5  # of cross-validation
MOST_IMAGES = 600  # of a site; more do not change the conclusions
PERMUTATIONS = 200  # of the sites of images, for the label shift that chance alone gives
C = 0.1  # inverse strength of the penalty of logistic regression, on standardised features
LARGE_GAP = 0.05  # of accuracies: a smaller difference changes no recommendation
STRONG, WEAK = 0.8, 0.5  # site classifier: share of the way from chance to certainty
FAR = 1.0  # distance from the hull, relative to the length of the gradient: no mixture is closer than zero


@dataclass(frozen=True)
class SiteShift:
    """Comparison of one site with the others."""

    site: str
    images: int  # number of images, or of samples of a table, that were used
    held_out: float  # accuracy if the site is not in the training data
    pooled: float  # accuracy if images of the site are in the training data, with those of all other sites
    alone: float  # accuracy of a classifier of this site only
    aligned: float  # as ``pooled``, but features are standardised within each site first
    offset: float  # as ``pooled``, but with an intercept of each site, which adapts to its label frequencies
    label_shift: float  # total variation distance between its label frequencies and those of the other sites
    label_noise: float  # label shift that chance alone gives in 95 % of permutations
    hull: float  # distance of its gradient from the hull of the others, relative to its length
    majority: float  # share of its most frequent class

    @property
    def gap(self) -> float:
        """Accuracy that is lost because the site is new."""
        return self.pooled - self.held_out

    @property
    def concept(self) -> float:
        """Accuracy that a classifier of this site gains over one of all sites.

        A shift of the features alone, or of the label frequencies alone, gives no gain.
        """
        return self.alone - max(self.pooled, self.aligned, self.offset)


@dataclass(frozen=True)
class Verdict(Tabular):
    """Result of the analysis."""

    sites: tuple[SiteShift, ...]
    forecast: Forecast
    site_accuracy: float  # balanced accuracy of a classifier that tells the sites apart
    conflict: float  # share of pairs of sites with opposed gradients
    samples: str = "images"  # what a sample is called: "images", or "samples" for a table

    @property
    def covariate_shift(self) -> float:
        """Distance between sites in features: 0 if they cannot be told apart, 1 if they always can."""
        chance = 1 / len(self.sites)
        return max((self.site_accuracy - chance) / (1 - chance), 0.0)

    def table(self) -> Table:
        """Return one row for each site."""
        columns = (
            Column("images", self.samples, kind="number"),
            Column("held_out", "new site (%)", kind="number", digits=".1f"),
            Column("pooled", "known site (%)", kind="number", digits=".1f"),
            Column("alone", "site alone (%)", kind="number", digits=".1f"),
            Column("label_shift", "label shift", kind="number", digits=".2f"),
            Column("hull", "distance from hull", kind="number", digits=".2f"),
        )
        rows = tuple(
            Row((s.images, 100 * s.held_out, 100 * s.pooled, 100 * s.alone, s.label_shift, s.hull), key=s.site)
            for s in self.sites
        )
        notes = (
            "Accuracy of logistic regression on fixed features: trained without the site (new site), with it (known "
            "site), or on it alone. Label shift: difference to the label frequencies of the other sites, from 0 (none) "
            "to 1 (no class in common; total variation distance). Distance from hull: how badly a mixture of the other "
            "sites replaces this one, from 0 (completely) to 1 and more (not at all), measured on gradients.",
        )
        return Table("Sites", columns, rows, footnotes=notes, row_key="site")

    def sentences(self) -> list[str]:
        """Return the verdict in words: forecast, kinds of shift, hardest site, methods to try, data that would help."""
        hardest = min(self.sites, key=lambda site: site.held_out)
        gap = float(np.mean([site.gap for site in self.sites]))
        return [
            self.forecast.text(),
            *self._shifts(),
            f"The hardest site is {hardest.site}: {hardest.held_out:.1%} as a new site, {hardest.pooled:.1%} as a "
            "known one.",
            self._methods(gap),
            self._data(gap, hardest),
        ]

    def _shifts(self) -> list[str]:
        share = self.covariate_shift
        degree = "strong" if share >= STRONG else "weak" if share < WEAK else "moderate"
        found = [
            f"Covariate shift: {degree}. A classifier of features tells the sites apart with {self.site_accuracy:.1%} "
            f"balanced accuracy (chance {1 / len(self.sites):.1%})."
        ]
        shifted = [site.site for site in self.sites if site.label_shift > site.label_noise]
        found.append(
            f"Label shift: {', '.join(shifted)} {'have' if len(shifted) > 1 else 'has'} other label frequencies than "
            "the other sites, by more than chance."
            if shifted
            else "Label shift: none beyond chance."
        )
        differing = [site.site for site in self.sites if site.concept > LARGE_GAP]
        found.append(
            f"Concept shift: likely at {', '.join(differing)}, where a classifier of the site alone is better than one "
            f"of all sites by more than {100 * LARGE_GAP:.0f} points, also if features are standardised by site, or if "
            "the classifier has an intercept for each site. Check that labels mean the same at every site."
            if differing
            else "Concept shift: no sign of it. A classifier of all sites is about as good as one of each site alone."
        )
        others = [site for site in self.sites if site.site not in differing]
        if blind := [site.site for site in others if site.alone < site.majority + LARGE_GAP]:
            found[-1] += (
                f" It cannot be measured at {', '.join(blind)}: a classifier of that site alone is hardly better than "
                "its most frequent class."
            )
        return found

    def _methods(self, gap: float) -> str:
        far = [site.site for site in self.sites if site.hull >= FAR]
        if gap < LARGE_GAP:
            lost = f"only {100 * gap:.1f} points of accuracy" if gap > 0 else "no accuracy"
            return f"Methods: ERM. A new site costs {lost}, so there is little for another method to gain."
        if self.conflict > 0 and len(far) < len(self.sites) / 2:
            candidates = ["POGM", "Fish"]
            why = f"the gradients of {self.conflict:.0%} of the pairs of sites are opposed"
        elif self.covariate_shift >= STRONG:
            candidates = ["'ERM + Mixup'", "'ERM + SWAD'", "CORAL"]
            candidates[:0] = ["'ERM + Augment'"] if self.samples == "images" else []
            why = "the covariate shift is strong"
        else:
            candidates, why = ["'ERM + SWAD'"], "averaged weights are the simplest candidate"
        return (
            f"Methods: ERM first; a new site costs {100 * gap:.1f} points of accuracy, so others may gain. Candidates, "
            f"because {why}: pogm train with --compare ERM {' '.join(candidates)}"
        )

    def _data(self, gap: float, hardest: SiteShift) -> str:
        if gap >= LARGE_GAP:
            return (
                f"Data: labelled {self.samples} of the new site would help most: as a known site, it gains "
                f"{100 * gap:.1f} points on average. Next best are further sites that resemble {hardest.site}."
            )
        few = len(self.sites) < FEW_SITES
        return "Data: more sites would narrow the forecast most." if few else "Data: no obvious gap; more of each site."

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and the sentences as JSON values."""
        return {
            "forecast": {"mean": self.forecast.mean, "low": self.forecast.low, "high": self.forecast.high},
            "site_accuracy": self.site_accuracy,
            "covariate_shift": self.covariate_shift,
            "conflict": self.conflict,
            "sites": {
                s.site: {
                    "images": s.images,
                    "held_out": s.held_out,
                    "pooled": s.pooled,
                    "alone": s.alone,
                    "aligned": s.aligned,
                    "offset": s.offset,
                    "label_shift": s.label_shift,
                    "label_noise": s.label_noise,
                    "hull": s.hull,
                    "majority": s.majority,
                }
                for s in self.sites
            },
            "sentences": self.sentences(),
        }


def analyse(
    features: Sequence[Array],
    labels: Sequence[Labels],
    names: Sequence[str],
    seed: int = 0,
    samples: str = "images",
    groups: Sequence[Labels] = (),
) -> Verdict:
    """Analyse the features of several sites.

    Args:
        features: Features of the images, or of the samples of a table, of each site, [N, F].
        labels: Their labels, [N].
        names: Names of the sites.
        seed: Seed of subsets, folds and permutations.
        samples: What a sample is called: "images" or "samples".
        groups: Group of each sample, such as a patient, [N] for each site; empty if there are none. Cross-validation
            does not divide a group.
    """
    draw = np.random.default_rng(seed)
    chosen = [draw.permutation(len(y))[:MOST_IMAGES] for y in labels]
    x = [part[index] for part, index in zip(features, chosen, strict=True)]
    y = [part[index] for part, index in zip(labels, chosen, strict=True)]
    site = np.concatenate([np.full(len(part), number) for number, part in enumerate(y)])
    every_x, every_y = np.concatenate(x), np.concatenate(y)
    group = np.concatenate([part[index] for part, index in zip(groups, chosen, strict=True)]) if groups else None
    fold = _folds(every_y, site, draw, group)
    pooled = _cross_validated(every_x, every_y, fold)
    aligned = _cross_validated(np.concatenate([_standardise(part) for part in x]), every_y, fold)
    indicators = np.eye(len(names))[site]
    offset = _cross_validated(np.concatenate([every_x, indicators], 1), every_y, fold)
    gradients = _gradients(x, y, int(every_y.max()) + 1)
    noise = _label_noise(every_y, site, draw)
    shifts = []
    for number, name in enumerate(names):
        own = site == number
        held_out = _fit(every_x[~own], every_y[~own]).predict(every_x[own]) == every_y[own]
        alone = _cross_validated(every_x[own], every_y[own], fold[own])
        shifts.append(
            SiteShift(
                site=name,
                images=int(own.sum()),
                held_out=float(held_out.mean()),
                pooled=float(pooled[own].mean()),
                alone=float(alone.mean()),
                aligned=float(aligned[own].mean()),
                offset=float(offset[own].mean()),
                label_shift=_label_shift(every_y, own),
                label_noise=noise[number],
                hull=_hull_distance(gradients, number),
                majority=float(np.bincount(every_y[own]).max() / own.sum()),
            )
        )
    return Verdict(
        sites=tuple(shifts),
        forecast=forecast([shift.held_out for shift in shifts], counts=[shift.images for shift in shifts]),
        site_accuracy=_balanced_accuracy(_cross_validated(every_x, site, fold), site),
        conflict=_conflict(gradients),
        samples=samples,
    )


def _fit(x: Array, y: Labels) -> Any:
    """Return logistic regression on standardised features, or a constant if there is only one class."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(y)) < 2:
        return DummyClassifier().fit(x, y)
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=200, tol=1e-3)).fit(x, y)


def _standardise(x: Array) -> Array:
    result: Array = (x - x.mean(0)) / (x.std(0) + 1e-8)
    return result


def _folds(labels: Labels, site: Labels, draw: np.random.Generator, group: Labels | None = None) -> Labels:
    """Return the fold of each image, so that every class of every site is in all folds. A group is in one fold."""
    if group is not None:
        _, first, number = np.unique(np.stack([site, group]), axis=1, return_index=True, return_inverse=True)
        return _folds(labels[first], site[first], draw)[number.ravel()]
    order = np.lexsort((draw.random(len(labels)), labels, site))
    fold = np.empty_like(site)
    fold[order] = np.arange(len(site)) % FOLDS
    return fold


def _cross_validated(x: Array, y: Labels, fold: Labels) -> npt.NDArray[np.bool_]:
    """Return for each image whether it is predicted correctly by a classifier that was not fitted to it."""
    right = np.zeros(len(y), dtype=bool)
    for number in np.unique(fold):
        test = fold == number
        if test.all():
            continue
        right[test] = _fit(x[~test], y[~test]).predict(x[test]) == y[test]
    return right


def _balanced_accuracy(right: npt.NDArray[np.bool_], site: Labels) -> float:
    return float(np.mean([right[site == number].mean() for number in np.unique(site)]))


def _label_shift(labels: Labels, own: npt.NDArray[np.bool_]) -> float:
    """Return the total variation distance between the label frequencies of a site and of the others."""
    count = int(labels.max()) + 1
    first, second = (np.bincount(part, minlength=count) / len(part) for part in (labels[own], labels[~own]))
    return float(np.abs(first - second).sum() / 2)


def _label_noise(labels: Labels, site: Labels, draw: np.random.Generator) -> list[float]:
    """Return, for each site, the 95 % quantile of the label shift if images are assigned to sites by chance."""
    found = []
    for _ in range(PERMUTATIONS):
        shuffled = draw.permutation(labels)
        found.append([_label_shift(shuffled, site == number) for number in range(int(site.max()) + 1)])
    return [float(value) for value in np.quantile(np.array(found), 0.95, axis=0)]


def _gradients(x: Sequence[Array], y: Sequence[Labels], classes: int) -> torch.Tensor:
    """Return the gradients of all sites at a linear classifier with weights 0, [sites, classes × (F + 1)]."""
    everything = np.concatenate(x)
    mean, deviation = everything.mean(0), everything.std(0) + 1e-8
    rows = []
    for part, labels in zip(x, y, strict=True):
        inputs = np.concatenate([(part - mean) / deviation, np.ones((len(part), 1))], 1)
        errors = np.eye(classes)[labels] - 1 / classes  # minus the gradient of the cross-entropy in the logits
        rows.append((errors.T @ inputs / len(part)).ravel())
    return torch.from_numpy(np.stack(rows))


def _conflict(gradients: torch.Tensor) -> float:
    """Return the share of pairs of sites with a negative inner product of gradients."""
    products = gramian(gradients)
    pairs = torch.triu_indices(len(products), len(products), 1)
    return float((products[pairs[0], pairs[1]] < 0).double().mean())


def _hull_distance(gradients: torch.Tensor, number: int) -> float:
    """Return the distance of one gradient from the convex hull of the others, relative to its length."""
    others = torch.cat([gradients[:number], gradients[number + 1 :], gradients[number : number + 1]])
    return float(hull_positions(gramian(others)[None], len(gradients) - 1)[0, 0, 0])
