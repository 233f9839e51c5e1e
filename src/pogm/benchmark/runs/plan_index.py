"""Index of a sweep: dataset, label and id of each planned run, so that their states can be counted without planning.

Planning 20,000 runs takes seconds, since it needs torch and draws all hyperparameters. The index is valid for one
``sweep.json`` and one version of the code, and has a checksum. If anything differs, the sweep is planned again. This
module does not import torch.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pogm
from pogm._system.errors import DataError
from pogm._system.files import digest, write_atomic
from pogm._system.saved import read_regular
from pogm.benchmark.results.record_digest import SWEEP
from pogm.benchmark.runs.state import state_of

INDEX = "plan_index.json"
MOST_BYTES = 1 << 28
Kind = tuple[str, str]  # dataset and label
Counts = dict[Kind, Counter[str]]


def count_states(folder: Path, runs: Iterable[tuple[Kind, str]]) -> Counts:
    """Count runs of each dataset and label by their state, given the kind and id of each run."""
    counts: Counts = {}
    for kind, run in runs:
        counts.setdefault(kind, Counter())[state_of(folder / run)] += 1
    return counts


def read_plan_index(folder: Path) -> list[tuple[Kind, str]] | None:
    """Return the kind and id of each run of a sweep, in the order of the plan; None if there is no valid index."""
    try:
        checksum, _, body = read_regular(folder / INDEX, MOST_BYTES).partition(b"\n")
        if checksum.decode() != _checksum(folder, body):
            return None
    except (OSError, ValueError, DataError):
        return None
    kinds, runs = json.loads(body)
    return [((kinds[number][0], kinds[number][1]), run) for number, run in runs]


def write_plan_index(folder: Path, runs: Iterable[tuple[Kind, str]]) -> None:
    """Write the index of a sweep; do nothing if the folder cannot be written to.

    Sweeps of other packages have none: their code may change.
    """
    numbers: dict[Kind, int] = {}
    rows = [(numbers.setdefault(kind, len(numbers)), run) for kind, run in runs]
    if any(":" in label for _, label in numbers):
        return
    body = json.dumps([list(numbers), rows]).encode()
    with suppress(OSError, DataError):
        write_atomic(folder / INDEX, f"{_checksum(folder, body)}\n".encode() + body)


def _checksum(folder: Path, body: bytes) -> str:
    """Return a hash of the index, the sweep and the state of all source files."""
    root = os.path.dirname(pogm.__file__)
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(root) for name in names if name.endswith(".py"))
    stamps = [(os.path.relpath(path, root), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    code = json.dumps([pogm.__version__, sorted(stamps)])
    parts = (code.encode(), read_regular(folder / SWEEP, MOST_BYTES), body)
    return digest("".join(map(digest, parts)).encode())
