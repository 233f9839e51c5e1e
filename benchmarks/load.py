"""Time and memory of pogm with many runs and many images, before and after a change.

python benchmarks/load.py --before WORKTREE [--runs 20160] [--images 200000] [--parts images plan ...] [--out X.json]

WORKTREE is a checkout of the version to compare with. The runs are files in the format of the runner with random
numbers: DomainBed's protocol on five datasets. The images are noise of 16 × 16 pixels. Both versions get the same
files, alternately. Every measurement is a new process: its wall time, its CPU time, and its peak memory.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pogm._system.files import readable_json
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RecordDigest
from pogm.benchmark.results.records import record_line
from pogm.benchmark.runs.directory import _description
from pogm.data.datasets import dataset_class

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = (
    *("ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "VREx", "RSC", "SagNet", "Fish", "Fishr"),
    *("POGM", "CAGrad"),
)
DATASETS = ("RotatedMNIST", "VLCS", "PACS", "OfficeHome", "DomainNet")
DOMAINS = 24  # of all datasets
CONFIGURATIONS, TRIALS = 20, 3


@dataclass(frozen=True)
class Cost:
    """Cost of one process."""

    seconds: float
    cpu_seconds: float
    peak_gib: float


def run_child(source: Path, words: Sequence[str], environment: dict[str, str]) -> Cost:
    """Run Python with one version of the package and return its cost."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(source / "src"), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    errors = child.stderr.read().decode() if child.stderr else ""
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{errors}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


# Runs.


def make_sweep(runs: int) -> Sweep:
    """Return a sweep with about this number of runs."""
    algorithms = [name for name in ALGORITHMS if name != "Mixup"]
    trials = max(1, runs // (len(algorithms) * DOMAINS * CONFIGURATIONS))
    configurations = max(1, runs // (len(algorithms) * DOMAINS * trials))
    datasets = tuple(dataset_class(name)() for name in DATASETS)
    return Sweep(tuple(algorithms), datasets, configurations=configurations, trials=trials)


def write_runs(sweep: Sweep, folder: Path) -> int:
    """Write the sweep with all runs finished; return their number."""
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_bytes(readable_json(sweep.to_json()))
    draw, trials = random.Random(0), sweep.plan()
    for trial in trials:
        write_run(trial, folder / trial.id, draw)
    return len(trials)


def write_run(trial: Trial, folder: Path, draw: random.Random) -> None:
    """Write the folder of a finished run."""
    folder.mkdir()
    provenance = {"pogm": "0.1.0", "torch": "2.15.0", "device": "cpu", "threads": 1, "processes": 1, "captured": False}
    (folder / "trial.json").write_bytes(readable_json(_description(trial) | {"provenance": provenance}))
    content = b"".join(record_line(record) for record in make_records(trial, draw))
    (folder / "records.jsonl").write_bytes(content)
    (folder / "done").write_bytes(RecordDigest(content).done())
    (folder / "lock").write_bytes(b"process 1 on here\n")


def make_records(trial: Trial, draw: random.Random) -> Iterator[dict[str, object]]:
    """Yield a record for every evaluation, as the runner writes it."""
    count, level = len(trial.dataset.domains), draw.random()
    for step in trial.schedule.points():
        learnt = level * step / trial.steps
        yield {
            "step": step,
            "epoch": step / 100,
            "accuracy": {split: [learnt * draw.random() for _ in range(count)] for split in ("in", "out")},
            "metrics": {"loss": draw.random(), "cosine": [draw.random() for _ in trial.train_domains], "skipped": 0.0},
            "seconds_per_step": 0.1 * draw.random(),
            "memory_gb": 0.0,
            "status": "ok",
        }
