"""Time and memory of pogm with many runs and many images, before and after a change.

python benchmarks/load.py --before WORKTREE [--runs 20160] [--images 200000] [--parts images plan ...] [--out X.json]

WORKTREE is a checkout of the version to compare with. The runs are files in the format of the runner with random
numbers: DomainBed's protocol on five datasets. The images are noise of 16 × 16 pixels. Both versions get the same
files, alternately. Every measurement is a new process: its wall time, its CPU time, and its peak memory.
"""

import argparse
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pogm._system.files import readable_json
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import RecordDigest
from pogm.benchmark.results.record_file import record_line
from pogm.benchmark.runs.directory import _description
from pogm.data.datasets import dataset_class

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = (
    *("ERM", "IRM", "GroupDRO", "MLDG", "CORAL", "MMD", "DANN", "VREx", "RSC", "SagNet", "Fish", "Fishr"),
    *("POGM", "CAGrad"),
)
DATASETS = ("RotatedMNIST", "VLCS", "PACS", "OfficeHome", "DomainNet")
DOMAINS = 24  # of all datasets
CONFIGURATIONS = 20


@dataclass(frozen=True)
class Cost:
    """Cost of one process."""

    seconds: float
    cpu_seconds: float
    peak_gib: float


def run_child(source: Path, words: Sequence[str], environment: dict[str, str], prints_cost: bool) -> Cost:
    """Run Python with one version of the package and return its cost, or the one that it prints at the end."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(source / "src"), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    errors = child.stderr.read().decode() if child.stderr else ""
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{errors}")
    if prints_cost:
        return Cost(*json.loads(errors.splitlines()[-1]))
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


# Runs.


def make_sweep(runs: int) -> Sweep:
    """Return a sweep with about this number of runs."""
    trials = max(1, runs // (len(ALGORITHMS) * DOMAINS * CONFIGURATIONS))
    configurations = max(1, runs // (len(ALGORITHMS) * DOMAINS * trials))
    datasets = tuple(dataset_class(name)() for name in DATASETS)
    return Sweep(ALGORITHMS, datasets, configurations=configurations, trials=trials)


def write_runs(runs: int, folder: Path) -> None:
    """Write a sweep with about this number of runs, all of them finished."""
    sweep = make_sweep(runs)
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_bytes(readable_json(sweep.to_json()))
    draw, trials = random.Random(0), sweep.plan()
    for trial in trials:
        write_run(trial, folder / trial.id, draw)


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


# Images.


def write_images(root: Path, images: int) -> None:
    """Write images of noise: four domains with ten classes each."""
    draw, folders = random.Random(0), [root / f"site{d}" / f"class{c}" for d in range(4) for c in range(10)]
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(images // len(folders)):
            (folder / f"{number:06d}.png").write_bytes(encode_png(draw.randbytes(16 * 48)))


def encode_png(pixels: bytes) -> bytes:
    """Return 16 × 16 pixels as PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + pixels[start : start + 48] for start in range(0, len(pixels), 48))
    header = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


START = """
import sys
from pathlib import Path
from pogm.benchmark.plan.datasets import find_dataset
from pogm.data.images.index import reuse_scans
root = Path(sys.argv[1])
with reuse_scans():  # what `pogm run` does before the first step
    dataset = find_dataset(str(root))
    dataset.prepare(root.parent, lambda items, total, **what: items)
    dataset.load(root.parent, 0)
    dataset.describe_data(root.parent)
"""

PLAN = """
import json, sys
from pathlib import Path
from pogm.benchmark.plan.sweep import Sweep
sweep = Sweep.from_json(json.loads(Path(sys.argv[1], "sweep.json").read_text()))
print(len({trial.id for trial in sweep.plan()}))
"""

BOARD = """
import json, resource, sys, time
from pathlib import Path
from pogm.report.board import Board
folder = Path(sys.argv[1])
run = min(path for path in folder.iterdir() if path.is_dir())
done = (run / "done").read_bytes()
(run / "done").unlink()
try:
    board = Board(folder)
    board.page()
finally:
    (run / "done").write_bytes(done)
began, cpu = time.perf_counter(), time.process_time()
board.page()
costs = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps([*costs, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]), file=sys.stderr)
"""


@dataclass(frozen=True)
class Part:
    """A measurement: what runs in a new process."""

    title: str
    words: Sequence[str]
    prepare: Callable[[], object] = lambda: None  # before each process
    prints_cost: bool = False  # the process measures a part of itself


def make_parts(folder: Path, runs: int, images: int, names: Sequence[str]) -> dict[str, Part]:
    """Write the files that the named measurements need, and return the measurements."""
    sweep, site = folder / "sweep", folder / "data" / "sites"
    if {"plan", "status", "report", "board"} & set(names):
        # In another process: the peak memory of a child includes that of its parent before the child starts.
        writer = multiprocessing.get_context("spawn").Process(target=write_runs, args=(runs, sweep))
        writer.start()
        writer.join()
        if writer.exitcode:
            raise SystemExit("The runs could not be written.")
    if {"images", "rename"} & set(names):
        write_images(site, images)
    first = site / "site0" / "class0" / "000000.png"
    turn = iter(range(10**6))

    def rename() -> None:
        (found,) = first.parent.glob("*000000*.png")
        found.rename(first.with_name(f"zz{next(turn)}_000000.png"))

    (folder / "report").mkdir()
    report = ("-m", "pogm", "report", str(sweep), "--out", str(folder / "report"))
    parts = {
        "images": Part("second start with images", ("-c", START, str(site))),
        "rename": Part("start after one image was renamed", ("-c", START, str(site)), rename),
        "plan": Part("plan of all runs", ("-c", PLAN, str(sweep))),
        "status": Part("pogm status", ("-m", "pogm", "status", str(sweep))),
        "report": Part("pogm report with HTML", report),
        "board": Part("board after one run is done", ("-c", BOARD, str(sweep)), prints_cost=True),
    }
    return {name: parts[name] for name in names}


def measure(part: Part, source: Path, cache: Path) -> Cost:
    """Return the cost of one process with one version."""
    part.prepare()
    environment = {"POGM_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    return run_child(source, part.words, environment, part.prints_cost)


def summarise(costs: Sequence[Cost]) -> dict[str, float]:
    """Return the medians of several processes, with three digits."""
    names = ("seconds", "cpu_seconds", "peak_gib")
    return {name: float(f"{median(getattr(cost, name) for cost in costs):.3g}") for name in names}


def write_results(results: dict[str, object], out: Path | None) -> None:
    """Print results, with the machine that they are from, and write them to a file if there is one."""
    machine = {
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
        "niceness": os.nice(0),
        "load_average": os.getloadavg()[1],
    }
    text = json.dumps(machine | results, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


def main() -> None:
    """Measure both versions and write the results."""
    names = ("images", "rename", "plan", "status", "report", "board")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the version to compare with")
    parser.add_argument("--runs", type=int, default=20160)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    versions = {"before": options.before.resolve(), "after": ROOT}
    with tempfile.TemporaryDirectory(prefix="pogm-load-") as name:
        folder = Path(name)
        parts = make_parts(folder, options.runs, options.images, options.parts)
        found: dict[str, dict[str, list[Cost]]] = {name: {version: [] for version in versions} for name in parts}
        for name, part in parts.items():
            for repeat in range(options.repeats + 1):
                for version, source in versions.items():
                    cost = measure(part, source, folder / f"cache-{version}")
                    if repeat:  # the first one fills caches
                        found[name][version].append(cost)
                    print(f"{part.title}, {version}: {cost}", flush=True)
    results = {
        "runs": options.runs,
        "images": options.images,
        "repeats": options.repeats,
        "parts": {
            name: {"title": parts[name].title} | {version: summarise(costs) for version, costs in both.items()}
            for name, both in found.items()
        },
    }
    write_results(results, options.out)


if __name__ == "__main__":
    main()
