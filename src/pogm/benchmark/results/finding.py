"""The main finding of some runs in one sentence: the best method, and its paired difference to ERM.

Methods are compared under training-domain validation. A difference is beyond the noise if its 95 % interval (Student's
t, corrected for the number of methods) excludes 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from pogm.benchmark.results.accuracy_tables import domains_of, labels_of, score_unit
from pogm.benchmark.results.paired import Chosen, interval, paired_difference
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.selection import TRAINING_DOMAIN, Choice
from pogm.benchmark.results.table import Estimate, estimate

BASELINE = "ERM"
TIED = 2.0  # standard errors; a larger difference is not called a tie, even if the seeds are too few to confirm it


@dataclass(frozen=True)
class Method:
    """The result of one method: its mean, and its paired difference to ERM."""

    label: str
    mean: Estimate  # in percent (or 100 R²), over the seeds with all held-out domains of all datasets
    difference: Estimate | None  # percentage points; None for ERM, and if there is no ERM


@dataclass(frozen=True)
class Finding:
    """Methods by their means, the best one first, and the sentence that follows from them."""

    methods: tuple[Method, ...]  # those that are complete for at least one seed
    incomplete: tuple[str, ...]  # labels of the other methods
    baseline: str | None  # label of ERM
    datasets: tuple[str, ...]
    unit: str  # "%", or "100 R²" if a dataset is a regression
    done: int  # finished runs
    planned: int  # all runs

    @property
    def comparisons(self) -> int:
        """Number of methods that are compared with ERM."""
        return max(1, sum(method.difference is not None for method in self.methods))

    def span(self, difference: Estimate | None) -> tuple[float, float] | None:
        """Return the 95 % interval of a difference; None if it has no standard error."""
        if difference is None or difference.stderr is None:
            return None
        return interval(difference, self.comparisons)

    @cached_property
    def sentence(self) -> str:
        """The finding in one sentence, which also says what is missing."""
        if not self.methods:
            return self._nothing()
        open_runs = self.planned - self.done
        start = f"Preliminary, {self.done} of {self.planned} runs are done: " if open_runs else ""
        without = f" ({', '.join(self.incomplete)}: not complete yet)" if self.incomplete else ""
        return f"{start}{self._comparison()}{without}."

    def _nothing(self) -> str:
        if not self.done:
            return f"There is no result yet: none of {self.planned} runs is done."
        return (
            f"There is no result yet: {self.done} of {self.planned} runs are done, but no method has a result for "
            "every held-out domain with one seed."
        )

    def _comparison(self) -> str:
        best = self.methods[0]
        lead = f"{best.label} has the highest mean {self._score} on {self._where}, {self._mean(best)}"
        if len(self.methods) == 1:
            return f"{best.label} has a mean {self._score} of {self._mean(best)} on {self._where}, and there is no " + (
                "finished method to compare it with" if self.incomplete else "other method to compare it with"
            )
        if self.baseline is None:
            return f"{lead}, but there is no run of {BASELINE} to compare it with"
        if self.baseline in self.incomplete:
            return f"{lead}, but {self.baseline} is not complete, so there is no difference to it"
        is_baseline = best.label == self.baseline
        compared = self.methods[1] if is_baseline else best
        subject = f"the next method, {compared.label}," if is_baseline else "it"
        return f"{lead}; {self._difference(compared, subject)}"

    def _difference(self, method: Method, subject: str) -> str:
        """Return the difference of a method to ERM in words, and whether it is beyond the noise."""
        difference = method.difference or Estimate()
        if difference.mean is None:
            return f"no seed has both {method.label} and {self.baseline}"
        size = f"{difference.mean:+.1f}"
        if difference.n < 2:
            return f"{subject} differs from {self.baseline} by {size} points, and the noise is unknown with n = 1 seed"
        text = f"{size} ± {difference.stderr:.1f} points, n = {difference.n} seeds, paired"
        if self.is_beyond_noise(difference):
            better = "better" if difference.mean > 0 else "worse"
            return f"{subject} is {better} than {self.baseline} beyond the noise ({text})"
        if abs(difference.mean) > TIED * (difference.stderr or 0.0):
            low, high = interval(difference, self.comparisons)
            span = f"the 95 % interval, {low:+.1f} to {high:+.1f}, contains 0"
            return f"{subject} is not significantly different from {self.baseline} ({text}: {span})"
        return f"{subject} is tied with {self.baseline} ({text}: within the noise)"

    def is_beyond_noise(self, difference: Estimate) -> bool:
        """Return True if the 95 % interval of a difference excludes 0."""
        span = self.span(difference)
        return span is not None and (span[0] > 0 or span[1] < 0)

    @property
    def _score(self) -> str:
        return "accuracy" if self.unit == "%" else "score"

    @property
    def _where(self) -> str:
        name = self.datasets[0] if len(self.datasets) == 1 else f"{len(self.datasets)} datasets"
        return f"unseen domains of {name}"

    def _mean(self, method: Method) -> str:
        error = "" if method.mean.stderr is None else f" ± {method.mean.stderr:.1f}"
        return f"{method.mean.mean:.1f}{error}{' %' if self.unit == '%' else f' ({self.unit})'}"


def find_baseline(labels: Sequence[str]) -> str | None:
    """Return the label of ERM: without modifiers or, if every method has the same modifiers, with them."""
    if BASELINE in labels:
        return BASELINE
    modifiers = {label.partition(" + ")[2] for label in labels}
    with_modifiers = f"{BASELINE} + {next(iter(modifiers), '')}"
    return with_modifiers if len(modifiers) == 1 and with_modifiers in labels else None


def find_main(runs: Iterable[Run], choices: Iterable[Choice] | None = None, waiting: int = 0) -> Finding:
    """Return the main finding of some runs.

    Args:
        runs: The runs, finished or not.
        choices: What training-domain validation chooses from the runs, if that is known.
        waiting: Number of planned runs that have not started.

    Raises:
        UsageError: If runs of one dataset have different domains.
    """
    runs = list(runs)
    held_out = [run for run in runs if run.test_domains]
    chosen: Chosen = {
        (choice.dataset, choice.label, choice.domain, choice.trial_seed): choice.accuracy
        for choice in (TRAINING_DOMAIN(held_out) if choices is None else choices)
    }
    datasets = tuple(dict.fromkeys(run.dataset for run in held_out))
    for dataset in datasets:
        domains_of(run for run in held_out if run.dataset == dataset)
    labels = labels_of(held_out)
    baseline = find_baseline(labels)
    methods = [_method(chosen, datasets, label, baseline) for label in labels]
    known = [method for method in methods if method.mean.mean is not None]
    return Finding(
        tuple(sorted(known, key=lambda method: -(method.mean.mean or 0.0))),
        tuple(method.label for method in methods if method.mean.mean is None),
        baseline,
        datasets,
        score_unit(held_out),
        sum(run.done for run in runs),
        len(runs) + waiting,
    )


def best_runs(runs: Iterable[Run]) -> list[Choice]:
    """Return one choice for each dataset: of the best method, the run and step with the best validation accuracy.

    Datasets without a finished run that holds out a domain are left out.
    """
    by_dataset: dict[str, list[Run]] = {}
    for run in runs:
        if run.test_domains:
            by_dataset.setdefault(run.dataset, []).append(run)
    best = []
    for found in by_dataset.values():
        choices = TRAINING_DOMAIN(found)
        methods = find_main(found, choices).methods
        known = [choice for choice in choices if choice.accuracy is not None]
        of_best = [choice for choice in known if methods and choice.label == methods[0].label] or known
        if of_best:
            best.append(max(of_best, key=lambda choice: choice.validation or -math.inf))
    return best


def _method(chosen: Chosen, datasets: Sequence[str], label: str, baseline: str | None) -> Method:
    is_compared = baseline is not None and label != baseline
    difference = paired_difference(chosen, datasets, label, baseline) if is_compared and baseline else None
    return Method(label, _mean_of_seeds(chosen, datasets, label), difference)


def _mean_of_seeds(chosen: Chosen, datasets: Sequence[str], label: str) -> Estimate:
    """Return the mean of a method over the seeds that have every held-out domain of every dataset."""
    expected = {dataset: {domain for name, _, domain, _ in chosen if name == dataset} for dataset in datasets}
    by_seed: dict[int, dict[str, list[float]]] = {}
    for (dataset, found, _, seed), value in chosen.items():
        if found == label and value is not None:
            by_seed.setdefault(seed, {}).setdefault(dataset, []).append(100 * value)
    complete = [
        fmean(fmean(values) for values in found.values())
        for found in by_seed.values()
        if all(len(found.get(dataset, ())) == len(expected[dataset]) for dataset in datasets)
    ]
    return estimate(complete) if complete else Estimate(reason="no complete seed")
