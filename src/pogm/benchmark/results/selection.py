"""Model selection: which run, at which step, may speak for an algorithm.

DomainBed's three methods (Gulrajani & Lopez-Paz, 2021) and one extension, all functions of finished runs.
Whatever the method, the accuracy reported is the *in* accuracy (80%) of the held-out domain.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from pogm.benchmark.results.records import Record, Run, accuracy, is_final

Siblings = Mapping[frozenset[int], list[Run]]  # of one configuration and trial seed, by what they hold out


@dataclass(frozen=True)
class Candidate:
    """What one configuration has to offer: a step, and its accuracies for choosing and for reporting."""

    run: str  # its id
    step: int
    validation: float
    test: float


@dataclass(frozen=True)
class Choice:
    """The result for one held-out domain and trial seed, or the reason there is none."""

    dataset: str
    label: str
    domain: int
    trial_seed: int
    accuracy: float | None = None
    validation: float | None = None
    run: str | None = None
    step: int | None = None
    reason: str = ""
    left_out: tuple[str, ...] = ()  # why configurations of this group could not take part


class UnusableError(Exception):
    """A configuration that offers no candidate; the message is the reason, short enough for a table."""


@dataclass(frozen=True)
class Selection:
    """A way to choose; `score` finds a configuration's candidate for one held-out domain."""

    name: str
    title: str
    rule: str
    score: Callable[[Siblings, int], Candidate]
    early_stopped_oracle: bool = False  # never shown beside the others

    def __call__(self, runs: Iterable[Run]) -> list[Choice]:
        """Choose for every (dataset, label, held-out domain, trial seed), in order of appearance."""
        groups: dict[tuple[str, str, int, int], dict[int, dict[frozenset[int], list[Run]]]] = {}
        for run in runs:
            for domain in sorted(run.test_domains):  # a run that holds out two belongs to two groups
                group = groups.setdefault((run.dataset, run.label, domain, run.trial_seed), {})
                group.setdefault(run.hparams_seed, {}).setdefault(run.test_domains, []).append(run)
        return [self._choose(Choice(*group), configurations) for group, configurations in groups.items()]

    def _choose(self, empty: Choice, configurations: Mapping[int, Siblings]) -> Choice:
        candidates: dict[int, Candidate] = {}
        reasons: list[str] = []
        for hparams_seed, siblings in configurations.items():
            try:
                candidates[hparams_seed] = self.score(siblings, empty.domain)
            except UnusableError as reason:
                reasons.append(str(reason))
        if not candidates:
            return replace(empty, reason="; ".join(dict.fromkeys(reasons)), left_out=tuple(reasons))
        # On equal validation the larger hparams_seed wins, as upstream's stable sort and reverse has it.
        best = candidates[max(candidates, key=lambda seed: (candidates[seed].validation, seed))]
        return replace(
            empty,
            accuracy=None if math.isnan(best.test) else best.test,
            validation=best.validation,
            run=best.run,
            step=best.step,
            reason="diverged" if math.isnan(best.test) else "",
            left_out=tuple(reasons),
        )


def _finished(siblings: Siblings, *held_out: int) -> Run:
    runs = siblings.get(frozenset(held_out), [])
    if not runs:
        raise UnusableError("not run" if len(held_out) == 1 else "no pair runs")
    if len(runs) > 1:
        # Two trials that differ in more than their seeds (say, in steps or an overridden kappa) are not
        # two trials of one thing, and choosing between them would be a search nobody asked for.
        raise UnusableError("ambiguous: settings differ")
    run = runs[0]
    if not run.done:
        raise UnusableError(run.status)
    if not run.records:
        raise UnusableError("no records")
    return run


def _best(candidates: Iterable[Candidate]) -> Candidate:
    """The highest validation accuracy, the first step on ties; null counts as minus infinity."""
    best = max(
        (candidate for candidate in candidates if not math.isnan(candidate.validation)),
        key=lambda candidate: candidate.validation,
        default=None,
    )
    if best is None:
        raise UnusableError("diverged")
    return best


def _score_training_domain(siblings: Siblings, domain: int) -> Candidate:
    run = _finished(siblings, domain)

    def candidate(record: Record) -> Candidate:
        validation = fmean(accuracy(record, "out", i) for i in run.train_domains)
        return Candidate(run.id, record["step"], validation, accuracy(record, "in", domain))

    return _best(map(candidate, run.eligible))


def _score_leave_one_domain_out(siblings: Siblings, domain: int) -> Candidate:
    run = _finished(siblings, domain)
    pairs = {v: _finished(siblings, domain, v) for v in run.train_domains}
    by_moment = {v: {_moment(record): record for record in pair.eligible} for v, pair in pairs.items()}

    def candidate(record: Record) -> Candidate:
        validation = fmean(accuracy(records[_moment(record)], "in", v) for v, records in by_moment.items())
        return Candidate(run.id, record["step"], validation, accuracy(record, "in", domain))

    shared = [record for record in run.eligible if all(_moment(record) in records for records in by_moment.values())]
    if not shared:
        raise UnusableError("no common step")
    return _best(map(candidate, shared))


def _moment(record: Record) -> int | None:
    """What makes records of two runs correspond: their step; or, of weights that stand for the whole run, just that."""
    return None if is_final(record) else int(record["step"])


def _score_test_domain(siblings: Siblings, domain: int) -> Candidate:
    run = _finished(siblings, domain)
    return _best([_oracle(run, run.eligible[-1], domain)])


def _oracle(run: Run, record: Record, domain: int) -> Candidate:
    return Candidate(run.id, record["step"], accuracy(record, "out", domain), accuracy(record, "in", domain))


TRAINING_DOMAIN = Selection(
    "training-domain",
    "Training-domain validation",
    "The run and step with the best mean accuracy on the held-back 20% of the training domains; "
    "nothing of the test domain is used.",
    _score_training_domain,
)

LEAVE_ONE_DOMAIN_OUT = Selection(
    "leave-one-domain-out",
    "Leave-one-domain-out cross-validation",
    "The configuration and step with the best mean accuracy on training domains that were themselves "
    "left out of training, one at a time; nothing of the test domain is used.",
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
    """The oracle with early stopping on the test domain: not DomainBed, needed to examine the paper."""

    def score(siblings: Siblings, domain: int) -> Candidate:
        run = _finished(siblings, domain)
        late = [record for record in run.eligible if is_final(record) or record["step"] > min_step]
        if not late:
            raise UnusableError(f"no step above {min_step}")
        return _best(_oracle(run, record, domain) for record in late)

    return Selection(
        f"test-domain-early-stop-{min_step}",
        f"Test-domain validation (oracle), stopped early after step {min_step}",
        f"The run and step above {min_step} with the best accuracy on 20% of the test domain; this stops "
        "training by the test domain and cannot be compared with the other selections.",
        score,
        early_stopped_oracle=True,
    )
