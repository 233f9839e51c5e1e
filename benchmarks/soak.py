"""Robustness of sweeps: processes are killed at random, and the results must equal those of an undisturbed sweep.

python benchmarks/soak.py --out FOLDER [--algorithms ERM POGM] [--executors local ray] [--seed 0]

The sweep has every held-out domain of ColoredDigits, 3 configurations and 2 trials of each algorithm (default: all
algorithms). Some kills end the driver and all its workers, like a power failure; others end one worker. At the end all
numbers in the records and in the tables of `pogm report` must be equal.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pogm.algorithms import all_algorithms
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import STATES, load_sweep, status

MOST = 10  # kills
CLOCK = ("seconds_per_step", "memory_gb")


def command(out: Path, executor: str, algorithms: list[str]) -> list[str]:
    """Return the command of a small sweep with a checkpoint at every evaluation."""
    size = ["--configurations", "3", "--trials", "2", "--steps", "101", "--evaluate-every", "10"]
    how = ["--device", "cpu", "--workers", "2", "--checkpoint-seconds", "0", "--executor", executor, "--out", str(out)]
    words = ["sweep", "--algorithms", *algorithms, "--datasets", "ColoredDigits", *size, *how]
    return [sys.executable, "-m", "pogm", *words]


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in its own process group."""
    with log.open("ab") as said:
        return subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)


def children(group: int) -> list[int]:
    """Return all processes of a group or session, except the first one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ours = int(fields[2]) == group or int(fields[3]) == group  # its process group, or its session
                if ours and int(entry.name) != group:
                    found.append(int(entry.name))
            except (OSError, IndexError):
                continue
    return found


def kill(processes: list[int]) -> None:
    """Kill processes with SIGKILL."""
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def soak(out: Path, executor: str, algorithms: list[str], seconds: float, chance: random.Random) -> int:
    """Run the sweep and kill it at random; return the number of kills. Undisturbed, it takes ``seconds``."""
    kills, words = 0, command(out, executor, algorithms)
    while True:
        process = start(words, out.with_suffix(".log"))
        while process.poll() is None:
            try:
                process.wait(seconds * chance.uniform(0.15, 0.6) if kills < MOST else None)
            except subprocess.TimeoutExpired:
                kills += 1
                below = children(process.pid)
                kill([chance.choice(below)] if below and chance.random() < 0.4 else [process.pid, *below])
                time.sleep(1)
        if (out / "sweep.json").exists():
            counts = status(load_sweep(out), out)
            total = {state: sum(count[state] for count in counts.values()) for state in STATES}
            print(f"{executor}: {kills} kills; " + ", ".join(f"{n} {state}" for state, n in total.items()), flush=True)
            if total["failed"]:
                sys.exit("some runs failed")
            if total["done"] == sum(total.values()):
                return kills
        time.sleep(1)


def numbers(out: Path) -> dict[str, object]:
    """Return all records by run, without times and memory."""
    return {
        run.id: [{key: value for key, value in record.items() if key not in CLOCK} for record in run.records]
        for run in read_runs(out)
    }


def tables(out: Path) -> str:
    """Return the output of `pogm report`."""
    words = [sys.executable, "-m", "pogm", "report", str(out), "--format", "csv"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--algorithms", nargs="+", default=list(all_algorithms()))
    parser.add_argument("--executors", nargs="+", default=["local", "ray"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    clean = options.out / "clean"
    began = time.monotonic()
    code = start(command(clean, "local", options.algorithms), clean.with_suffix(".log")).wait()
    if code:
        sys.exit(f"the sweep that was left alone ended with {code}; see {clean.with_suffix('.log')}")
    seconds = time.monotonic() - began
    expected = numbers(clean), tables(clean)
    print(f"{len(expected[0])} runs without a kill, {seconds:.0f} s", flush=True)
    for executor in options.executors:
        out = options.out / executor
        kills = soak(out, executor, options.algorithms, seconds, random.Random(options.seed))
        same = (numbers(out), tables(out)) == expected
        print(f"{executor}: killed {kills} times; records and tables are {'the same' if same else 'NOT the same'}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main()
