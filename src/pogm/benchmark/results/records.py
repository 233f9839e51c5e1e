"""Run folders, read as `Run`s: the trial, its records, and how it ended.

What is read from files is validated, here against `TRIAL_FORM`. A run folder that does not have the form is named in a
`RecordWarning` and left out.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from pogm._system.collector import pause_collector
from pogm._system.errors import DataError, PogmError
from pogm._system.saved import check_form, intern_texts, parse_numbers, read_regular
from pogm.benchmark.results.packed_records import PackedRecords, pack_records
from pogm.benchmark.results.record_digest import FAILED, RECORDS, TRIAL, read_verified
from pogm.benchmark.results.record_file import (
    NUMBER,
    Record,
    RecordWarning,
    finite,
    is_final,
    mean_score,
    parse_records,
    validate_regular_record,
)
from pogm.benchmark.results.run_names import name_runs

TRIAL_BYTES = 1 << 20
FAILED_BYTES = 1 << 20
TRIAL_FORM = {  # fields that are not listed may be missing: old run folders do not have all
    "id": str,
    "label": str,
    "domains": [str],
    "trial": {
        "dataset": {"name": str, "title?": str, "task?": str},
        "algorithm": {"name": str},
        "modifiers?": [{"name": str}],
        "training?": {},
        "test_domains": [int],
        "hparams_seed": int,
        "trial_seed": int,
        "steps?": int,
        "evaluate_every?": int,
        "samples?": int,
        "combination?": {"rule": str, "kept": int, "considered": int, "seconds?": NUMBER},
    },
    "members?": [str],
    "considered?": [str],
    "provenance?": {},
}
# Errors of files that were not written by this package, or were damaged.
UNREADABLE = (PogmError, OSError, ValueError, TypeError, KeyError, RecursionError)


@dataclass(frozen=True)
class Run:
    """One run folder: the trial, its records, and how it ended."""

    folder: Path
    id: str
    trial: Mapping[str, Any]
    label: str
    domains: tuple[str, ...]
    records: Sequence[Record]  # in the order of their steps
    done: bool  # True if the run finished, so that tables use its records
    failure: str | None  # error message of a run that failed
    provenance: Mapping[str, Any]  # versions and hardware
    final: Record | None = None  # record of averaged weights, such as SWAD's, that replaces the others in selection
    members: tuple[str, ...] = ()  # ids of the runs that a combination was made from

    @property
    def eligible(self) -> Sequence[Record]:
        """Records that a model selection may choose from."""
        return self.records if self.final is None else (self.final,)

    @cached_property
    def best_record(self) -> tuple[float, Record] | None:
        """The highest mean validation accuracy over training domains, and its record, the first one of equals.

        None if it is undefined in every record. It is cached, because several tables need it.
        """
        records, domains = self.eligible, self.train_domains
        scores = records.read_lists("accuracy", "out") if isinstance(records, PackedRecords) else None
        if scores is not None and all(len(values) == len(self.domains) for values in scores):
            validations = [fmean([values[i] for i in domains]) for values in scores]
        else:
            validations = [mean_score(record, "out", domains) for record in records]
        known = [number for number, value in enumerate(validations) if not math.isnan(value)]
        best = max(known, key=validations.__getitem__, default=None)
        return None if best is None else (validations[best], records[best])

    @cached_property
    def seconds_per_step(self) -> float | None:
        """Mean time of a step in seconds, without evaluations and compilation; None if no step was timed."""
        measured = [finite(record.get("seconds_per_step")) for record in self.records]
        known = [seconds for seconds in (measured[1:] or measured) if seconds > 0]  # the first one contains compilation
        return fmean(known) if known else None

    @cached_property
    def dataset(self) -> str:
        """Name of the dataset; for a folder of images, its title."""
        dataset = self.trial["dataset"]
        return str(dataset.get("title", dataset["name"]))

    @cached_property
    def task(self) -> str:
        """Task of the dataset: classification, whose score is the accuracy, or regression, whose score is R²."""
        return str(self.trial["dataset"].get("task", "classification"))

    @cached_property
    def test_domains(self) -> frozenset[int]:
        """Indices of the held-out domains."""
        return frozenset(self.trial["test_domains"])

    @cached_property
    def train_domains(self) -> tuple[int, ...]:
        """Indices of the training domains, in the order of the per-domain lists in the metrics of a record."""
        return tuple(i for i in range(len(self.domains)) if i not in self.test_domains)

    @property
    def held_out(self) -> str:
        """Names of the held-out domains."""
        return ", ".join(self.domains[i] for i in sorted(self.test_domains))

    @property
    def hparams_seed(self) -> int:
        return int(self.trial["hparams_seed"])

    @property
    def trial_seed(self) -> int:
        return int(self.trial["trial_seed"])

    @property
    def diverged(self) -> bool:
        """True if the last record says so."""
        return bool(self.records) and self.records[-1].get("status", "ok") != "ok"

    @property
    def status(self) -> str:
        """State of the run: done, diverged, failed or unfinished."""
        if self.done:  # a DomainBed job is used even if it stopped early
            return "done" if self.failure is None else "unfinished"
        if self.diverged:
            return "diverged"
        return "failed" if self.failure is not None else "unfinished"


def read_runs(*folders: Path | str) -> list[Run]:
    """Read every run folder at or below the given folders, of pogm and of DomainBed.

    The order depends on the trials, not on the paths. A folder that cannot be read is left out with a
    `RecordWarning`. Of two folders with the same id (a copy), the one with more records is returned.

    Raises:
        DataError: If one of the folders does not exist.
    """
    from pogm.benchmark import domainbed  # here, because it imports this module

    readers: dict[str, Callable[[Path], Run]] = {TRIAL: read_run, domainbed.RESULTS: domainbed.read_job}
    by_id: dict[str, Run] = {}
    with pause_collector():
        for path in _run_files(folders, tuple(readers)):
            try:
                run = readers[path.name](path.parent)
            except UNREADABLE as error:
                reason = f"{type(error).__name__}: {error}"
                warnings.warn(f"{path}: run left out ({reason})", RecordWarning, stacklevel=2)
                continue
            copy = by_id.get(run.id)
            if copy is None or (run.done, len(run.records)) > (copy.done, len(copy.records)):
                by_id[run.id] = run
        return name_runs(domainbed.label_domainbed_runs(by_id.values()))


def _run_files(folders: tuple[Path | str, ...], names: tuple[str, ...]) -> list[Path]:
    """Find one file for each run folder: the first of the names that it has."""
    found: set[str] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise DataError(
                f"Expected a folder of runs; found nothing at {folder}. "
                "Pass the folder that `pogm run`, `pogm sweep` or DomainBed wrote to."
            )
        for parent, _, files in os.walk(folder):
            first = [os.path.join(parent, name) for name in names if name in files][:1]
            found.update(first)
            if not first and RECORDS in files:
                warnings.warn(f"{parent}: run left out (it has no {TRIAL})", RecordWarning, stacklevel=3)
    return [Path(path) for path in sorted(found, key=lambda path: path.split(os.sep))]


def read_run(folder: Path) -> Run:
    """Read one run folder of pogm; raise one of `UNREADABLE` if that is not possible."""
    saved = read_trial_file(folder)
    content, done = read_verified(folder)
    packed = pack_records(content, validate_regular_record)
    records: Sequence[Record] = parse_records(content, folder / RECORDS) if packed is None else packed
    final = None if packed is not None else next(filter(is_final, reversed(records)), None)
    return Run(
        folder=folder,
        id=saved["id"],
        trial=saved["trial"],
        label=saved["label"],
        domains=tuple(saved["domains"]),
        records=records if final is None else tuple(record for record in records if not is_final(record)),
        done=done,
        failure=None if done else read_failure(folder),
        provenance=saved.get("provenance") or {},
        final=final,
        members=tuple(saved.get("considered", saved.get("members", ()))),
    )


def read_failure(folder: Path) -> str | None:
    """Return the reason of a failure in ``failed.json``; None if there is no such file."""
    path = folder / FAILED
    try:
        content = parse_numbers(read_regular(path, FAILED_BYTES))
        check_form(content, {"error": str}, FAILED)
        return str(content["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return f"{path} is there but cannot be read"


def read_trial_file(folder: Path) -> dict[str, Any]:
    """Return the content of ``trial.json``.

    Raises:
        ValueError: It is not JSON, or does not have the expected form.
        OSError: It cannot be read.
    """
    saved: dict[str, Any] = intern_texts(_validate_trial(parse_numbers(read_regular(folder / TRIAL, TRIAL_BYTES))))
    return saved


def _validate_trial(saved: Any) -> dict[str, Any]:
    check_form(saved, TRIAL_FORM, TRIAL)
    held_out, count = saved["trial"]["test_domains"], len(saved["domains"])
    if not set(held_out) < set(range(count)):
        raise ValueError(f"Expected test_domains to be some of {count} domains; found {str(held_out)[:80]}.")
    return saved  # type: ignore[no-any-return]
