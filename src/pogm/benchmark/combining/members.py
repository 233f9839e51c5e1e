"""Members of a combination: finished runs of a sweep, grouped, and checked before anything is computed."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from pogm._system.errors import IntegrityError, PogmError, UsageError
from pogm._system.files import canonical_json, digest
from pogm._system.messages import note
from pogm.algorithms.base import Algorithm
from pogm.benchmark.combining.initial_weights import digest_initial_weights
from pogm.benchmark.plan.trial import Trial, differences
from pogm.benchmark.results.records import Run, finite
from pogm.benchmark.runs.directory import load_trial
from pogm.benchmark.runs.selected_model import MODEL, read_description, read_weights
from pogm.engine.session import STATISTICS

COMBINATION = "combination"  # entry of trial.json and model.json of a combination


@dataclass(frozen=True)
class Member:
    """A finished run with a selected model."""

    run: Run
    trial: Trial
    description: dict[str, Any]  # of the selected model

    @property
    def seconds(self) -> float | None:
        """Time of the training steps in seconds, without evaluations; None if it was not recorded."""
        measured = [finite(record.get("seconds_per_step")) for record in self.run.records]
        known = [seconds for seconds in (measured[1:] or measured) if seconds > 0]  # the first one contains compilation
        return fmean(known) * self.trial.steps if known else None

    @property
    def sha256(self) -> str:
        """Digest of the file of its weights."""
        return str(self.description["weights"]["sha256"])

    def read_weights(self) -> dict[str, Tensor]:
        """Read the weights, the buffers, and the statistics of the inputs."""
        return read_weights(self.run.folder / MODEL, self.description)

    def to_json(self) -> dict[str, Any]:
        """Return the facts that identify the member, and its cost."""
        return {
            "run": self.run.id,
            "label": self.run.label,
            "hparams_seed": self.run.hparams_seed,
            "trial_seed": self.run.trial_seed,
            "step": self.description["selection"]["step"],
            "weights": dict(self.description["weights"]),
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Group:
    """Runs that are combined into one model: those of one dataset, held-out domain and, usually, trial."""

    label: str  # algorithm and modifiers, or several of them
    members: tuple[Member, ...]
    pooled: bool = False  # the members are from several trials, with different splits

    @property
    def trial(self) -> Trial:
        """Trial of the first member. Dataset, held-out domains and network are those of all members."""
        return self.members[0].trial

    @property
    def trial_seed(self) -> int:
        """Seed of the splits; the smallest one if there are several."""
        return min(member.run.trial_seed for member in self.members)

    @property
    def seconds(self) -> float | None:
        """Sum of the training times of all members; None if one is unknown."""
        known = [member.seconds for member in self.members]
        return None if None in known else math.fsum(second for second in known if second is not None)

    @property
    def title(self) -> str:
        """Text for messages."""
        run = self.members[0].run
        trial = "all trials" if self.pooled else f"trial {self.trial_seed}"
        return f"{self.label} on {run.dataset}, held out {run.held_out}, {trial}"

    def cell(self, rule: str) -> str:
        """Return a digest of everything but the members: a combination with other members replaces it."""
        run = self.members[0].run
        seed = "pooled" if self.pooled else self.trial_seed
        facts = [run.dataset, run.trial["dataset"].get("content"), self.label, sorted(run.test_domains), seed, rule]
        return digest(canonical_json(facts).encode())[:12]

    def content(self, rule: str) -> str:
        """Return a digest of the combination: its rule, and the weights of all runs it is made from."""
        members = [[member.run.id, member.sha256] for member in self.members]
        return digest(canonical_json([self.cell(rule), sorted(members)]).encode())[:16]


def find_groups(
    runs: Iterable[Run], *, labels: Sequence[str] = (), across_algorithms: bool = False, pool_trials: bool = False
) -> list[Group]:
    """Group finished runs by dataset, held-out domains, algorithm and trial. Runs that cannot be used are left out.

    Args:
        runs: Runs, also unfinished ones and combinations.
        labels: Use only runs with these labels, such as "ERM + Mixup"; all if empty.
        across_algorithms: Combine the runs of all algorithms.
        pool_trials: Combine the runs of all trials, whose splits differ.

    Raises:
        UsageError: A label is unknown, or no group has two usable runs.
        IntegrityError: No group has two usable runs, because models are damaged.
    """
    single = [run for run in runs if COMBINATION not in run.trial]
    known = list(dict.fromkeys(run.label for run in single))
    if unknown := [label for label in labels if label not in known]:
        raise UsageError(f"Expected labels of runs ({', '.join(known) or 'none'}); found {unknown[0]!r}. Choose others.")
    chosen = [run for run in single if not labels or run.label in labels]
    found: dict[tuple[object, ...], list[Member]] = {}
    damaged = False
    for run in chosen:
        try:
            member = _read_member(run)
        except PogmError as error:
            damaged |= isinstance(error, IntegrityError)
            note(f"{run.folder} is left out: {error}")
            continue
        key = (
            run.dataset,
            run.test_domains,
            None if across_algorithms else run.label,
            None if pool_trials else run.trial_seed,
        )
        found.setdefault(key, []).append(member)
    groups = [_make_group(members) for members in found.values() if len(members) > 1]
    for members in found.values():
        if len(members) == 1:
            note(f"{members[0].run.folder} is left out: there is no second run to combine it with.")
    if not groups:
        problem = IntegrityError if damaged else UsageError
        raise problem(
            f"Expected two or more finished runs of an algorithm with the same held-out domain and trial; found none "
            f"among {len(chosen)} runs. Finish them (pogm resume), or train more configurations: "
            "pogm sweep --configurations N --shared-init"
        )
    return groups


def _make_group(members: Sequence[Member]) -> Group:
    labels = list(dict.fromkeys(member.run.label for member in members))
    label = " / ".join(labels) if len(labels) <= 3 else f"{len(labels)} algorithms"
    return Group(label, tuple(members), pooled=len({member.run.trial_seed for member in members}) > 1)


def _read_member(run: Run) -> Member:
    """Return the member of a finished run; raise a `PogmError` if it is not finished or has no intact model."""
    if run.status != "done":
        raise UsageError(f"The run is {run.status}.")
    if not (run.folder / MODEL).is_dir():
        raise UsageError("The run has no selected model: it is of an earlier version, or of DomainBed.")
    try:
        description = read_description(run.folder / MODEL)
        size = (run.folder / MODEL / Path(description["weights"]["file"]).name).stat().st_size
    except OSError as error:
        raise IntegrityError(f"Its model cannot be read: {error.strerror}.") from error
    if size != description["weights"]["bytes"]:
        raise IntegrityError(f"Its weights have {size} bytes and not {description['weights']['bytes']}.")
    return Member(run, load_trial(run.folder), description)


def check_weights(group: Group) -> Group:
    """Read the weights of all members once; return the group without the members whose weights are damaged.

    Raises:
        IntegrityError: Fewer than two members are intact.
        UsageError: The members have different networks, or different statistics of their inputs.
    """
    intact: list[Member] = []
    shapes: dict[str, Any] | None = None
    statistics: dict[str, Tensor] = {}
    for member in group.members:
        try:
            tensors = member.read_weights()
        except IntegrityError as error:
            note(f"{member.run.folder} is left out: {error}")
            continue
        found = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in tensors.items()}
        fitted = {name: leaf for name, leaf in tensors.items() if name.startswith(STATISTICS)}
        if shapes is None:
            shapes, statistics = found, fitted
        elif found != shapes:
            name = next(n for n in sorted(found.keys() | shapes.keys()) if found.get(n) != shapes.get(n))
            raise _refusal(group, member, f"different networks, which differ in {name}", "Choose runs of one network.")
        elif any(not leaf.equal(statistics[name]) for name, leaf in fitted.items()):
            reason = "inputs that are normalised with different statistics, because the training splits differ"
            raise _refusal(group, member, reason, "Combine the runs of one trial.")
        intact.append(member)
    if len(intact) < 2:
        raise IntegrityError(
            f"Expected two or more intact models for {group.title}; found {len(intact)}. Restore the files from a copy."
        )
    return Group(group.label, tuple(intact), group.pooled)


def check_compatible(group: Group, *, share_weights: bool) -> None:
    """Raise a `UsageError` if the models of a group must not be combined.

    Args:
        group: The group.
        share_weights: The weights are averaged, so all members need the same initial weights. Otherwise predictions
            are averaged, so no model may adapt to its batch.
    """
    checks: list[tuple[Callable[[Member], Any], str, str]] = [
        (lambda m: m.trial.dataset.to_json() | {"title": ""}, "different datasets", "Give each dataset its own folder."),
        (lambda m: m.description["classes"], "different classes", "Combine runs with the same classes."),
        (lambda m: m.trial.training.network, "different networks", "Choose runs of one network."),
        (lambda m: m.trial.training.nonlinear_classifier, "different classifiers", "Choose runs of one classifier."),
        (lambda m: repr(m.trial.dataset.transform(m.trial.training)), "different inputs", "Use one image size."),
        (lambda m: m.description["stored_size"], "different sizes of stored images", "Use one image size."),
    ]
    if group.trial.dataset.uses_seed:
        checks.append((lambda m: m.trial.data_seed, DIFFERENT_DATA, SHARED_INIT))
    if share_weights:
        checks.append((lambda m: digest_initial_weights(m.trial), "different initial weights", SHARED_OR_ENSEMBLE))
    first = group.members[0]
    for read, what, advice in checks:
        for member in group.members[1:]:
            if (found := read(member)) != (expected := read(first)):
                raise _refusal(group, member, f"{what}{_detail(expected, found, first, member)}", advice)
    adapting = next((member for member in group.members if _adapts(member.trial)), None)
    if adapting is not None and (not share_weights or len({m.run.label for m in group.members}) > 1):
        reason = f"{adapting.run.label}, whose predictions depend on the other samples of a batch"
        raise UsageError(f"Expected models that predict each sample on its own, for {group.title}; found {reason}. "
                         "Choose other runs with --algorithms.")


DIFFERENT_DATA = "data drawn with different seeds, so a test image of one run is a training image of another"
SHARED_INIT = "Start the sweep with --shared-init."
SHARED_OR_ENSEMBLE = "Start the sweep with --shared-init, or average predictions: pogm ensemble"


def _detail(expected: Any, found: Any, first: Member, member: Member) -> str:
    """Return what differs between two members, in parentheses; for initial weights, the seeds."""
    if isinstance(expected, dict):
        return f" ({differences(expected, found)})"
    seeds = [m.trial.seed if m.trial.init_seed < 0 else m.trial.init_seed for m in (first, member)]
    if isinstance(expected, str) and expected.split(" ")[0] != found.split(" ")[0]:
        return f" ({expected.split(' ')[0]} and {found.split(' ')[0]})"
    return f" (seeds {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] else ""


def _refusal(group: Group, member: Member, what: str, advice: str) -> UsageError:
    return UsageError(
        f"Expected runs that can be combined for {group.title}; found {what}: {group.members[0].run.folder} and "
        f"{member.run.folder}. {advice}"
    )


def _adapts(trial: Trial) -> bool:
    """Return True if a prediction depends on the other samples of its batch."""
    parts = (trial.algorithm, *trial.modifiers)
    return any(part.prediction_batch_size for part in parts) or type(trial.algorithm).predict is not Algorithm.predict
