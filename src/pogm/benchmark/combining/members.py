"""Members of a combination: finished runs of a sweep, grouped, and checked before anything is computed."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pogm._system.errors import IntegrityError, PogmError, UsageError, unknown_name_error
from pogm._system.files import canonical_json, digest
from pogm._system.messages import note
from pogm._system.saved import check_form
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.combined import COMBINATION
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import Run
from pogm.benchmark.runs.directory import load_trial
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL, read_description, read_weights

LISTED = 3  # folders that a note names


@dataclass(frozen=True)
class Member:
    """A run with a selected model."""

    run: Run
    trial: Trial
    description: dict[str, Any]  # of the selected model

    @property
    def seconds(self) -> float | None:
        """Time of the training steps in seconds, without evaluations; None if it is not known."""
        rate = self.run.seconds_per_step
        return None if rate is None or not self.run.done else rate * self.trial.steps

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
        trial = "all trials" if self.pooled else f"trial {self.trial_seed}"
        return f"{self.label} on {self.members[0].run.dataset}, {self.held_out}, {trial}"

    @property
    def held_out(self) -> str:
        """Text for the held-out domains."""
        run = self.members[0].run
        return f"held out {run.held_out}" if run.test_domains else "trained on all domains"

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
    """Group finished runs by dataset, held-out domains, algorithm and trial.

    Runs that are unfinished or damaged are left out with a `RecordWarning`.

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
        raise unknown_name_error("a label of the runs", unknown[0], known)
    chosen = [run for run in single if not labels or run.label in labels]
    found: dict[tuple[object, ...], list[Member]] = {}
    damaged = False
    for run in chosen:
        try:
            member = _read_finished(run)
        except PogmError as error:
            damaged |= isinstance(error, IntegrityError)
            warnings.warn(f"{run.folder} is left out: {error}", RecordWarning, stacklevel=2)
            continue
        key = (
            run.dataset,
            run.test_domains,
            None if across_algorithms else run.label,
            None if pool_trials else run.trial_seed,
        )
        found.setdefault(key, []).append(member)
    groups = [_make_group(members) for members in found.values() if len(members) > 1]
    alone = [str(members[0].run.folder) for members in found.values() if len(members) == 1]
    if alone:
        more = f" and {len(alone) - LISTED} more" if len(alone) > LISTED else ""
        verb, it = ("are", "them") if len(alone) > 1 else ("is", "it")
        note(f"{', '.join(alone[:LISTED])}{more} {verb} left out: there is no second run to combine {it} with.")
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


def _read_finished(run: Run) -> Member:
    """Return the member of a finished run; raise a `PogmError` if it is not finished or has no intact model."""
    if run.status != "done":
        raise UsageError(f"The run is {run.status}.")
    return read_member(run)


def read_member(run: Run) -> Member:
    """Return the member of a run, which may be unfinished.

    Raises:
        UsageError: The run has no selected model.
        IntegrityError: Its model is damaged.
    """
    if not (run.folder / MODEL).is_dir():
        raise UsageError(
            "The run has no selected model: it is of a sweep with --skip-model-save, an earlier version or DomainBed."
        )
    try:
        description = read_description(run.folder / MODEL)
        size = (run.folder / MODEL / Path(description["weights"]["file"]).name).stat().st_size
    except OSError as error:
        raise IntegrityError(f"Its model cannot be read: {error.strerror}.") from error
    if size != description["weights"]["bytes"]:
        raise IntegrityError(f"Its weights have {size} bytes and not {description['weights']['bytes']}.")
    try:
        check_form(description, {"selection": {"step": int}}, DESCRIPTION)
    except ValueError as error:
        raise IntegrityError(str(error)) from error
    return Member(run, load_trial(run.folder), description)
