"""Robustness of sweeps: processes are killed and system calls fail at random; results equal those of a clean sweep.

python benchmarks/soak.py --out FOLDER [--kills 200] [--faults 200] [--algorithms ERM POGM] [--executor ray] [--seed 0]

A sweep trains every held-out domain of ColoredDigits. It is disturbed and resumed until it is done; then the next sweep
begins, until the requested numbers of kills and of faults are reached. A kill ends one worker, the driver alone, or the
driver and all workers, like a power failure. A fault is an error of a system call, or a kill at one (`call_faults.py`).
Every finished run must have the records, weights and metrics of the clean one, bit by bit, and `pogm report` must print
the same tables. A hang, a traceback or an exit code of an unexpected error ends the benchmark with exit code 1.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from call_faults import FAULTS, VARIABLE

from pogm.benchmark.results.records import read_runs

CLOCK = ("seconds_per_step", "memory_gb")
RESULTS = ("model/*.safetensors", "metrics.json")  # files of a run whose bytes are compared
CODES = (0, 1, 2, 3, 6, 75)  # of a driver; 1 if runs failed
HANG_SECONDS = 300
WORKERS = "workers.log"
MOST_CALLS = 100  # a fault hits one of the first calls of a process

# Printed by Python, and not by code of pogm, if a driver is killed while it starts a worker.
UNFINISHED_START = re.compile(r"Traceback.*\n(?: .*\n)*(?:EOFError.*|_pickle.UnpicklingError: .*)\n")

CONTEXT = multiprocessing.get_context("forkserver")


def command(out: Path, executor: str, algorithms: list[str]) -> list[str]:
    """Return the command of a small sweep with a checkpoint at every evaluation."""
    size = ["--configurations", "1", "--trials", "1", "--steps", "61", "--evaluate-every", "10"]
    how = ["--device", "cpu", "--workers", "2", "--checkpoint-seconds", "0", "--executor", executor, "--out", str(out)]
    return ["sweep", "--algorithms", *algorithms, "--datasets", "ColoredDigits", *size, *how, "--retry-failed"]


def start(words: list[str], log: Path, fault: str = "") -> BaseProcess:
    """Start a command in a session of its own; write its output to a file."""
    ensure_server(log.parent / WORKERS)
    process = CONTEXT.Process(target=_run, args=(words, log, fault, server_attribute("address")))
    process.start()
    return process


def ensure_server(log: Path) -> None:
    """Start the fork server, if it does not run. Its processes write their errors to a file.

    Python's fork server ends if a process is killed while it asks for another one. In a sweep that does not matter: the
    server belongs to the driver that was killed.
    """
    terminal, file = os.dup(2), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 2)
    forkserver.ensure_running()
    os.dup2(terminal, 2)
    os.close(terminal)
    os.close(file)


def server_attribute(name: str) -> Any:
    """Return a private attribute of the fork server of this process."""
    return getattr(forkserver._forkserver, f"_forkserver_{name}")  # type: ignore[attr-defined]


def _run(words: list[str], log: Path, fault: str, address: str) -> None:
    """Run a command whose workers come from the fork server that this process came from: it has imported torch."""
    from pogm.cli import main

    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    server.ensure_running = resource_tracker.ensure_running
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if fault:
        os.environ[VARIABLE] = fault
    sys.exit(main(words))


def children(driver: int) -> list[int]:
    """Return all processes of the driver's session and all other processes of the fork server, without the driver."""
    server, found = server_attribute("pid"), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ours = int(fields[3]) == driver or int(fields[1]) == server  # its session, or its parent
                if ours and int(entry.name) != driver:
                    found.append(int(entry.name))
    return found


def kill(processes: list[int]) -> None:
    """Kill processes with SIGKILL."""
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


class Soak:
    """Disturbed sweeps, and the numbers of kills and faults so far."""

    def __init__(self, root: Path, executor: str, algorithms: list[str], seed: int):
        self.root, self.executor, self.algorithms = root, executor, algorithms
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def clean(self) -> None:
        """Run the sweep without a disturbance, and keep its results."""
        self.out = self.root / "clean"
        began = time.monotonic()
        self._start()
        if self._wait(HANG_SECONDS):
            sys.exit(f"the sweep that was left alone failed; see {self.log}")
        self.seconds = time.monotonic() - began
        self.expected = self.results()
        print(f"{len(self.ids)} runs without a disturbance, {self.seconds:.0f} s", flush=True)

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    @property
    def ids(self) -> list[str]:
        return sorted(path.parent.name for path in (self.root / "clean").glob("*/done"))

    def disturb(self, number: int, kills: int, faults: int) -> None:
        """Run a sweep to its end, with at most these numbers of kills and faults from now on."""
        self.out = self.root / f"disturbed{number}"
        before = self.kills.total(), self.faults.total()
        while not all((self.out / run / "done").exists() for run in self.ids):
            can_kill = self.kills.total() - before[0] < kills
            can_fail = self.faults.total() - before[1] < faults
            self.is_killed = False
            self._start(self._draw_fault() if can_fail else "")
            while can_kill and self.process.exitcode is None:
                self._wait(self.chance.uniform(0, self.seconds / 8))
                if self.process.exitcode is None:
                    self._kill()
                    can_kill = self.kills.total() - before[0] < kills
            code = self._wait(HANG_SECONDS)
            self._count_faults()
            if code not in (*CODES, -signal.SIGKILL) and not self.is_killed:
                sys.exit(f"{self.out}: exit code {code}; see {self.log}")
            for file in (self.log, *self.out.glob("*/failed.json")):
                if file.exists() and b"Traceback" in file.read_bytes():  # a kill may come before the file is made
                    sys.exit(f"{self.out}: a traceback; see {file}")
            said = UNFINISHED_START.sub("", (self.root / WORKERS).read_text())
            if not all(line.startswith("pogm: ") for line in said.splitlines()):
                sys.exit(f"{self.out}: other lines than messages of pogm; see {self.root / WORKERS}")
        if self.results() != self.expected:
            sys.exit(f"{self.out}: NOT the results of {self.root / 'clean'}")

    def _start(self, fault: str = "") -> None:
        self.process = start(command(self.out, self.executor, self.algorithms), self.log, fault)

    def _wait(self, seconds: float) -> int | None:
        """Wait for the driver; return its exit code, or None if it still runs."""
        self.process.join(seconds)
        if self.process.exitcode is None and seconds == HANG_SECONDS:
            kill([self.process.pid or 0, *children(self.process.pid or 0)])
            sys.exit(f"{self.out}: still running after {seconds:.0f} s; see {self.log}")
        return self.process.exitcode

    def _draw_fault(self) -> str:
        number = int(MOST_CALLS ** self.chance.random())
        return f"{self.chance.choice(FAULTS)} {number} {self.out.absolute()}"

    def _count_faults(self) -> None:
        notes = self.out.with_suffix(".faults")
        if notes.exists():
            self.faults.update(line.split()[0] for line in notes.read_text().splitlines())
            notes.unlink()

    def _kill(self) -> None:
        driver = self.process.pid or 0
        below = children(driver)
        target = self.chance.choice(["worker", "worker", "driver", "all"])
        if target == "worker" and below:
            kill([self.chance.choice(below)])
        else:
            target = "driver" if target == "driver" else "all"
            self.is_killed = True
            kill([driver, *below] if target == "all" else [driver])
            self.process.join(HANG_SECONDS)
        self.kills[target] += 1

    def results(self) -> dict[str, object]:
        """Return the records without times, the digests of files of results, and the tables of `pogm report`."""
        found: dict[str, object] = {"tables": self._tables()}
        for run in read_runs(self.out):
            lines = [{key: value for key, value in record.items() if key not in CLOCK} for record in run.records]
            files = sorted(path for form in RESULTS for path in (self.out / run.id).rglob(form))
            digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
            found[run.id] = lines, digests
        return found

    def _tables(self) -> str:
        log = self.out.with_suffix(".csv")
        log.unlink(missing_ok=True)
        process = start(["report", str(self.out), "--format", "csv"], log)
        process.join(HANG_SECONDS)
        return log.read_text().replace(str(self.out), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--algorithms", nargs="+", default=["ERM", "POGM"])
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.out.exists() and not (options.out / "version.log").exists() and any(options.out.iterdir()):
        parser.error(f"Expected an empty folder or that of an earlier soak; found other files in {options.out}.")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    preload = ["call_faults", "pogm.cli.sweep", "pogm.cli.results", "pogm.cli.execution", "pogm.benchmark.catalogue"]
    preload += ["pogm.data.datasets.colored_digits", "sklearn.datasets", "torch._dynamo", "jinja2", "vl_convert"]
    CONTEXT.set_forkserver_preload(preload)
    began = time.monotonic()
    start(["--version"], options.out / "version.log").join()  # the fork server has imported everything
    soak = Soak(options.out, options.executor, options.algorithms, options.seed)
    soak.clean()
    sweeps = 0
    while (kills := options.kills - soak.kills.total()) > 0 or options.faults > soak.faults.total():
        sweeps += 1
        soak.disturb(sweeps, kills, options.faults - soak.faults.total())
        shutil.rmtree(soak.out)
        kinds = f"kills {dict(soak.kills)}, faults {dict(soak.faults)}"
        print(f"{time.monotonic() - began:.0f} s: {sweeps} sweeps with the same results; {kinds}", flush=True)
    print(f"{soak.kills.total()} kills, {soak.faults.total()} faults, the same results")


if __name__ == "__main__":
    main()
