"""Run folders on disk: one JSON line per evaluation, appended by the trainer and read back as `Run`s."""

import errno
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unicodedata import category

from pogm._system.errors import DataError
from pogm._system.fault_injection import fault_point

TRIAL = "trial.json"
FINAL = "swad"  # the mark of a record of averaged weights
Record = Mapping[str, Any]


class RecordWarning(UserWarning):
    """Something in a run folder could not be read and was left out."""


@dataclass(frozen=True)
class Run:
    """One run folder: what was asked for, what was measured, and how it ended."""

    folder: Path
    id: str
    trial: Mapping[str, Any]
    label: str
    domains: tuple[str, ...]
    records: tuple[Record, ...]  # by step
    done: bool  # its records count
    failure: str | None  # why it stopped early, if it said so
    provenance: Mapping[str, Any]
    final: Record | None = None  # of weights that stand for the whole run, such as SWAD's mean

    @property
    def eligible(self) -> tuple[Record, ...]:
        """What a selection may choose from."""
        return self.records if self.final is None else (self.final,)

    @property
    def dataset(self) -> str:
        """Its name: a folder of images has a title."""
        dataset = self.trial["dataset"]
        return str(dataset.get("title", dataset["name"]))

    @property
    def test_domains(self) -> frozenset[int]:
        return frozenset(self.trial["test_domains"])

    @property
    def train_domains(self) -> tuple[int, ...]:
        """In the order of the per-domain lists in a record's metrics."""
        return tuple(i for i in range(len(self.domains)) if i not in self.test_domains)

    @property
    def held_out(self) -> str:
        """The names of the test domains."""
        return ", ".join(self.domains[i] for i in sorted(self.test_domains))

    @property
    def hparams_seed(self) -> int:
        return int(self.trial["hparams_seed"])

    @property
    def trial_seed(self) -> int:
        return int(self.trial["trial_seed"])

    @property
    def diverged(self) -> bool:
        return bool(self.records) and self.records[-1].get("status", "ok") != "ok"

    @property
    def status(self) -> str:
        """How it ended, in one word."""
        if self.done:  # a job of DomainBed's counts even where it stopped early
            return "done" if self.failure is None else "unfinished"
        if self.diverged:
            return "diverged"
        return "failed" if self.failure is not None else "unfinished"


def accuracy(record: Record, split: Literal["in", "out"], domain: int) -> float:
    """The accuracy on one split of one domain; NaN where it is null or absent."""
    by_split = record.get("accuracy")
    values = by_split.get(split) if isinstance(by_split, dict) else None
    return finite(values[domain]) if isinstance(values, list) and domain < len(values) else math.nan


def finite(value: object) -> float:
    """A number from a record; NaN where it is null, infinite or not a number."""
    usable = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if usable else math.nan  # type: ignore[arg-type]


def append_record(path: Path, record: Record) -> None:
    """Append one line in a single write, so that a crash can cut it short but never interleave it."""
    line = record_line(record)
    try:
        with open(path, "ab+", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an earlier write was cut short; it must not swallow this one
                    line = b"\n" + line
            fault_point("append")
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"{written} fitted")
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(
            f"Expected to write {len(line)} bytes to {path}; found: {error.strerror or error}. "
            "Free some space or permit writing, then resume."
        ) from error


def record_line(record: Record) -> bytes:
    """A record as it is written."""
    return json.dumps(_without_nonfinite(record), sort_keys=True, allow_nan=False).encode() + b"\n"


def _without_nonfinite(value: Any) -> Any:
    """JSON has no NaN and no infinity; both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item) for item in value]
    return value


def read_records(path: Path) -> tuple[Record, ...]:
    """The records of one file by step; a step written twice counts once, as it was written last.

    That of the averaged weights, which shares its step with another one, comes last.
    Lines that are no record (half-written, garbage) are skipped with one `RecordWarning`.
    """
    by_step: dict[tuple[bool, int], Record] = {}
    skipped = 0
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except (ValueError, RecursionError):
            record = None
        step = record.get("step") if isinstance(record, dict) else None
        if isinstance(step, int) and not isinstance(step, bool):
            by_step[is_final(record), step] = record
        else:
            skipped += 1
    if skipped:
        lines = "line" if skipped == 1 else "lines"
        warnings.warn(f"{path}: skipped {skipped} unreadable {lines}", RecordWarning, stacklevel=2)
    return tuple(by_step[step] for step in sorted(by_step))


def is_final(record: Record) -> bool:
    """Whether a record is of weights that stand for the whole run."""
    return record.get(FINAL) is True


def read_runs(*folders: Path | str) -> list[Run]:
    """Every run folder at or below the given ones, ours or DomainBed's, ordered by what was run, not by where it lies.

    A folder that cannot be read is reported as a `RecordWarning`. A trial found twice (a copied
    folder has the same id) counts once, as the copy that got further.
    """
    from pogm.benchmark import domainbed  # which is written in the terms of this file

    readers: dict[str, Callable[[Path], Run]] = {TRIAL: _read_run, domainbed.RESULTS: domainbed.read_job}
    by_id: dict[str, Run] = {}
    for path in _run_files(folders, tuple(readers)):
        try:
            run = readers[path.name](path.parent)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"{path}: run left out ({reason})", RecordWarning, stacklevel=2)
            continue
        twin = by_id.get(run.id)
        if twin is None or (run.done, len(run.records)) > (twin.done, len(twin.records)):
            by_id[run.id] = run
    return sorted(told_apart(domainbed.told_apart(by_id.values())), key=table_order)


def told_apart(runs: Iterable[Run]) -> list[Run]:
    """Folders of the same name with different images are different datasets: these get a piece of their content."""
    runs = list(runs)
    contents: dict[str, set[object]] = {}
    for run in runs:
        contents.setdefault(run.dataset, set()).add(run.trial["dataset"].get("content"))
    return [_with_content(run) if len(contents[run.dataset]) > 1 else run for run in runs]


def _with_content(run: Run) -> Run:
    dataset = run.trial["dataset"]
    title = f"{run.dataset} ({str(dataset.get('content'))[:6]})"
    return replace(run, trial={**run.trial, "dataset": {**dataset, "title": title}})


def table_order(run: Run) -> tuple[object, ...]:
    """What runs are sorted by."""
    held_out = sorted(run.test_domains)
    return (
        run.dataset,
        run.label.casefold(),
        len(held_out),
        held_out,
        run.hparams_seed,
        run.trial_seed,
        run.id,
    )


def _run_files(folders: tuple[Path | str, ...], names: tuple[str, ...]) -> list[Path]:
    """The file that makes a folder a run's; the first of the names, where there are several."""
    found: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise DataError(
                f"Expected a folder of runs; found nothing at {folder}. "
                "Pass the folder that `pogm run`, `pogm sweep` or DomainBed wrote to."
            )
        for parent, _, files in os.walk(folder):
            found.update([Path(parent, name) for name in names if name in files][:1])
    return sorted(found)


def _read_run(folder: Path) -> Run:
    saved = _parse((folder / TRIAL).read_bytes())
    if not isinstance(saved, dict) or not isinstance(saved.get("trial"), dict):
        raise ValueError("expected an object with a trial in it")
    trial, domains = saved["trial"], saved["domains"]
    _require(isinstance(saved["id"], str) and isinstance(saved["label"], str), "id and label to be text")
    _require(isinstance(trial["dataset"]["name"], str), "dataset to have a name")
    _require(_are(domains, str) and len(domains) > 0, "domains to be a list of names")
    held_out = trial["test_domains"]
    _require(_are(held_out, int) and len(held_out) > 0, "test_domains to be a list of indices")
    _require(set(held_out) < set(range(len(domains))), f"test_domains to be some of {len(domains)} domains")
    _require(_are([trial["hparams_seed"], trial["trial_seed"]], int), "seeds to be integers")
    done = (folder / "done").exists()
    provenance = saved.get("provenance")
    records = read_records(folder / "records.jsonl")
    return Run(
        folder=folder,
        id=saved["id"],
        trial=trial,
        label=saved["label"],
        domains=tuple(domains),
        records=tuple(record for record in records if not is_final(record)),
        done=done,
        failure=None if done else _failure(folder / "failed.json"),
        provenance=provenance if isinstance(provenance, dict) else {},
        final=next(filter(is_final, reversed(records)), None),
    )


def _failure(path: Path) -> str | None:
    try:
        return str(_parse(path.read_bytes())["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return f"{path.name} is there but cannot be read"


def _are(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _require(holds: bool, expectation: str) -> None:
    if not holds:
        raise ValueError(f"expected {expectation}")


def _parse(text: bytes) -> Any:
    """JSON, with the NaN that other writers leave in it read as null."""
    return json.loads(text.decode(), parse_constant=lambda _: None)


def printable(name: object) -> str:
    """A name as it may be shown: control characters and broken text (from anyone's folder) made visible."""
    return "".join(char if char.isprintable() or category(char) == "Zs" else ascii(char)[1:-1] for char in str(name))
