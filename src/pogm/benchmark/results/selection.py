"""Model selection: choose the run and the step whose accuracy is reported for an algorithm.

The selection rules are the three of DomainBed (Gulrajani & Lopez-Paz, 2021) and one extension. They use finished runs
only, and report the accuracy on the *in* split (80%) of the held-out domain.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from pogm.benchmark.results.record_file import Record, accuracy, is_final, is_undefined
from pogm.benchmark.results.records import Run

UNDEFINED = "R² undefined"  # all targets are equal

ByHeldOut = Mapping[frozenset[int], list[Run]]  # runs of one configuration and trial seed, by held-out domains


@dataclass(frozen=True)
class Candidate:
    """The best step of one configuration, with the accuracies for selection and for the report."""

    run: str  # id of the run
    step: int
    validation: float  # accuracy that selection compares
    test: float  # accuracy that is reported
    reason: str = "diverged"  # why it is NaN, if it is


@dataclass(frozen=True)
class Choice:
    """The result for one held-out domain and trial seed, or the reason why there is none."""

    dataset: str
    label: str
    domain: int  # index of the held-out domain
    trial_seed: int
    accuracy: float | None = None  # on the held-out domain
    validation: float | None = None  # accuracy that was compared
    run: str | None = None  # id of the chosen run
    step: int | None = None
    reason: str = ""  # why there is no result
    candidates: int = 0  # number of configurations among which it was chosen
    left_out: tuple[str, ...] = ()  # for each configuration without a candidate, the reason


class UnusableError(Exception):
    """A configuration has no candidate. The message is the reason, short enough for a table."""


@dataclass(frozen=True)
class Selection:
    """A selection rule."""

    name: str  # in CSV and JSON
    title: str
    rule: str  # one sentence that says what is chosen
    score: Callable[[ByHeldOut, int], Candidate]  # returns the candidate of a configuration for a held-out domain
    early_stopped_oracle: bool = False  # stops early by the test domain; never compared with other rules

    def __call__(self, runs: Iterable[Run]) -> list[Choice]:
        """Choose for every (dataset, label, held-out domain, trial seed), in the order of the runs."""
        groups: dict[tuple[str, str, int, int], dict[int, dict[frozenset[int], list[Run]]]] = {}
        for run in runs:
            for domain in sorted(run.test_domains):  # a run with two held-out domains is in two groups
                group = groups.setdefault((run.dataset, run.label, domain, run.trial_seed), {})
                group.setdefault(run.hparams_seed, {}).setdefault(run.test_domains, []).append(run)
        return [self._choose(Choice(*group), configurations) for group, configurations in groups.items()]

    def _choose(self, empty: Choice, configurations: Mapping[int, ByHeldOut]) -> Choice:
        candidates: dict[int, Candidate] = {}
        reasons: list[str] = []
        for hparams_seed, by_held_out in configurations.items():
            try:
                candidates[hparams_seed] = self.score(by_held_out, empty.domain)
            except UnusableError as reason:
                reasons.append(str(reason))
        if not candidates:
            return replace(empty, reason="; ".join(dict.fromkeys(reasons)), left_out=tuple(reasons))
        # With equal validation accuracies the larger hparams_seed is chosen, as in DomainBed.
        best = candidates[max(candidates, key=lambda seed: (candidates[seed].validation, seed))]
        return replace(
            empty,
            accuracy=None if math.isnan(best.test) else best.test,
            validation=best.validation,
            run=best.run,
            step=best.step,
            reason=best.reason if math.isnan(best.test) else "",
            candidates=len(candidates),
            left_out=tuple(reasons),
        )


def _finished(by_held_out: ByHeldOut, *held_out: int) -> Run:
    """Return the finished run that holds out these domains; raise UnusableError if there is none or several."""
    runs = by_held_out.get(frozenset(held_out), [])
    if not runs:
        raise UnusableError("not run" if len(held_out) == 1 else "no pair runs")
    if len(runs) > 1:
        # The trials differ in a setting, such as the number of steps. To choose between them would be a search
        # that was not planned.
        raise UnusableError("ambiguous: settings differ")
    run = runs[0]
    if not run.done:
        raise UnusableError(run.status)
    if not run.records:
        raise UnusableError("no records")
    return run


def _best(candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate with the highest validation accuracy, the first one of equals; NaN is never chosen."""
    best = max(
        (candidate for candidate in candidates if not math.isnan(candidate.validation)),
        key=lambda candidate: candidate.validation,
        default=None,
    )
    if best is None:
        raise UnusableError("diverged")
    return best


def _score_training_domain(by_held_out: ByHeldOut, domain: int) -> Candidate:
    run = _finished(by_held_out, domain)
    if run.best_record is None:
        raise UnusableError("diverged")
    validation, record = run.best_record
    return _candidate(run, record, validation, domain)


def _score_leave_one_domain_out(by_held_out: ByHeldOut, domain: int) -> Candidate:
    run = _finished(by_held_out, domain)
    pairs = {v: _finished(by_held_out, domain, v) for v in run.train_domains}
    by_key = {v: {_match_key(record): record for record in pair.eligible} for v, pair in pairs.items()}

    def candidate(record: Record) -> Candidate:
        found = {v: records[_match_key(record)] for v, records in by_key.items()}
        scores = [accuracy(other, "in", v) for v, other in found.items() if not is_undefined(other, "in", v)]
        return _candidate(run, record, fmean(scores) if scores else math.nan, domain)

    shared = [record for record in run.eligible if all(_match_key(record) in records for records in by_key.values())]
    if not shared:
        raise UnusableError("no common step")
    return _best(map(candidate, shared))


def _match_key(record: Record) -> int | None:
    """Return the key by which records of two runs are matched: the step, or None for the record of averaged weights."""
    return None if is_final(record) else int(record["step"])


def _score_test_domain(by_held_out: ByHeldOut, domain: int) -> Candidate:
    run = _finished(by_held_out, domain)
    if is_undefined(run.eligible[-1], "out", domain):
        raise UnusableError(UNDEFINED)
    return _best([_oracle_candidate(run, run.eligible[-1], domain)])


def _oracle_candidate(run: Run, record: Record, domain: int) -> Candidate:
    return _candidate(run, record, accuracy(record, "out", domain), domain)


def _candidate(run: Run, record: Record, validation: float, domain: int) -> Candidate:
    reason = UNDEFINED if is_undefined(record, "in", domain) else "diverged"
    return Candidate(run.id, record["step"], validation, accuracy(record, "in", domain), reason)


TRAINING_DOMAIN = Selection(
    "training-domain",
    "Training-domain validation",
    "The run and step with the best mean accuracy on the validation splits (20%) of the training domains; "
    "the test domain is not used.",
    _score_training_domain,
)

LEAVE_ONE_DOMAIN_OUT = Selection(
    "leave-one-domain-out",
    "Leave-one-domain-out cross-validation",
    "The configuration and step with the best mean accuracy on training domains that were themselves "
    "left out of training, one at a time; the test domain is not used.",
    _score_leave_one_domain_out,
)

TEST_DOMAIN = Selection(
    "test-domain",
    "Test-domain validation (oracle)",
    "The run with the best accuracy on 20% of the test domain after its last step, without early stopping; "
    "this looks at the test domain and is an upper reference, not a fair estimate.",
    _score_test_domain,
)

SELECTIONS = (TRAINING_DOMAIN, LEAVE_ONE_DOMAIN_OUT, TEST_DOMAIN)


def oracle_early_stop(min_step: int) -> Selection:
    """Return the oracle with early stopping by the test domain. DomainBed does not have it; the paper seems to use it.

    Args:
        min_step: Only records after this step are compared.
    """

    def score(by_held_out: ByHeldOut, domain: int) -> Candidate:
        run = _finished(by_held_out, domain)
        late = [record for record in run.eligible if is_final(record) or record["step"] > min_step]
        if not late:
            raise UnusableError(f"no step above {min_step}")
        return _best(_oracle_candidate(run, record, domain) for record in late)

    return Selection(
        f"test-domain-early-stop-{min_step}",
        f"Test-domain validation (oracle), stopped early after step {min_step}",
        f"The run and step above {min_step} with the best accuracy on 20% of the test domain; this stops "
        "training by the test domain and cannot be compared with the other selections.",
        score,
        early_stopped_oracle=True,
    )
