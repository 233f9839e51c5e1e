"""Files of records, with one JSON line for each evaluation, and the scores in a record.

What is read is validated against `RECORD_FORM`.
"""

import errno
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pogm._system.errors import DataError
from pogm._system.fault_injection import fault_point
from pogm._system.files import open_own_file
from pogm._system.moved import rename_metrics
from pogm._system.saved import LARGEST, check_form, parse_numbers
from pogm.benchmark.results.packed_records import Record as Record
from pogm.benchmark.results.record_digest import read_content

FINAL = "swad"  # key that marks the record of averaged weights
NUMBER = (int, float, type(None))
NUMBERS = (int, float, list, type(None))  # a number, or a list with one for each domain
SCORES_FORM = {"in?": [NUMBER], "out?": [NUMBER]}
RECORD_FORM = {  # fields that are not listed may be missing: old files do not have all
    "step": int,
    "epoch?": NUMBER,
    "accuracy?": SCORES_FORM,
    "r2?": SCORES_FORM,
    "metrics?": {str: NUMBERS},
    "rounds?": {str: list},
    "seconds_per_step?": NUMBER,
    "memory_gb?": NUMBER,
    "status?": str,
}


class RecordWarning(UserWarning):
    """A part of a run folder could not be read and was left out."""


def accuracy(record: Record, split: Literal["in", "out"], domain: int) -> float:
    """Return the accuracy, or the R² of a regression, on one split of one domain; NaN if it is null or missing."""
    by_split = record.get("accuracy", record.get("r2"))
    values = by_split.get(split) if isinstance(by_split, dict) else None
    return finite(values[domain]) if isinstance(values, list) and domain < len(values) else math.nan


def is_undefined(record: Record, split: Literal["in", "out"], domain: int) -> bool:
    """Return True if a regression has no R² there because all targets are equal: then it still has an RMSE."""
    errors = record.get("rmse")
    values = errors.get(split) if isinstance(errors, dict) else None
    known = isinstance(values, list) and domain < len(values) and not math.isnan(finite(values[domain]))
    return known and math.isnan(accuracy(record, split, domain))


def mean_score(record: Record, split: Literal["in", "out"], domains: Iterable[int]) -> float:
    """Return the mean accuracy, or R², on one split over domains.

    Domains whose R² is undefined, because all targets are equal, are left out: they are the same ones at every step.
    The mean is NaN if a score is null or missing for another reason, or if no domain is left.
    """
    scores = [accuracy(record, split, i) for i in domains if not is_undefined(record, split, i)]
    return fmean(scores) if scores else math.nan


def finite(value: object) -> float:
    """Return a number from a record; NaN if it is null, not finite, above `LARGEST` or not a number."""
    usable = isinstance(value, int | float) and abs(value) <= LARGEST
    return float(value) if usable else math.nan  # type: ignore[arg-type]


def append_record(path: Path, record: Record) -> None:
    """Append a record in a single write, so that a crash can shorten it but not mix it with another.

    Raises:
        DataError: If the file cannot be written.
    """
    line = record_line(record)
    try:
        with open(path, "ab+", buffering=0, opener=open_own_file) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an earlier write was cut short: start a new line
                    line = b"\n" + line
            fault_point("append")
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"{written} bytes written")
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(
            f"Expected to write {len(line)} bytes to {path}; found: {error.strerror or error}. "
            "Free some space or allow writing, then resume."
        ) from error


def record_line(record: Record) -> bytes:
    """Return a record as the line that is written."""
    return json.dumps(_without_nonfinite(record), sort_keys=True, allow_nan=False).encode() + b"\n"


def _without_nonfinite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item) for item in value]
    return value


def read_records(path: Path) -> tuple[Record, ...]:
    """Read the records of one file in the order of their steps; none if there is no file.

    Of several records for a step, the last one is returned. The record of averaged weights, which has the step of
    another record, comes last. Lines that are not records (half-written, garbage) are skipped with one
    `RecordWarning`.
    """
    return parse_records(read_content(path), path)


def parse_records(content: bytes, path: Path) -> tuple[Record, ...]:
    """Return the records in the content of a file, see `read_records`; the path is for the warning."""
    by_step: dict[tuple[bool, int], Record] = {}
    skipped = 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = _validate_record(parse_numbers(line))
        except (ValueError, RecursionError):
            skipped += 1
        else:
            by_step[is_final(record), record["step"]] = record
    if skipped:
        lines = "line" if skipped == 1 else "lines"
        warnings.warn(f"{path}: skipped {skipped} unreadable {lines}", RecordWarning, stacklevel=2)
    return tuple(by_step[step] for step in sorted(by_step))


def is_final(record: Record) -> bool:
    """Return True for the record of averaged weights, which stand for the whole run."""
    return record.get(FINAL) is True


def _validate_record(record: Any) -> Record:
    """Return a record, with present names of metrics; raise ValueError if it does not have the expected form."""
    check_form(record, RECORD_FORM, "record")
    named = {part: record[part] for part in ("metrics", "rounds") if record.get(part) is not None}
    return record | {part: rename_metrics(values) for part, values in named.items()}  # type: ignore[no-any-return]


def validate_regular_record(record: Any) -> Record:
    """Return a valid record as `_validate_record` does; raise ValueError for a record of averaged weights."""
    validated = _validate_record(record)
    if is_final(validated):
        raise ValueError("expected no averaged weights")
    return validated
