"""Compare the speed of two versions of the package in one run.

python benchmarks/compare.py OLD NEW --device cuda [--cases pacs-ERM ...] [--out compare_h200.json]

OLD and NEW are checkouts (``git worktree add ../old COMMIT``). Each case has one process for each version, with its own
empty compiler cache. All processes compile at the same time; then the two versions of a case are timed in turns while
all other processes wait. Cases are the rows of ``speed.py``: a minibatch of PACS with a ResNet-50 and its peak memory,
the meta-update alone, and the steps and evaluations of a ColoredMNIST trial, alone and 16 in one session.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

CASES = ("pacs-ERM", "pacs-POGM", "meta-sgd", "meta-adam", "mnist-POGM", "mnist-ERM", "mnist-POGM-16")
COMPILE_THREADS = "2"  # of each process: all of them compile at the same time


def work(case: str, device: str, compile: str, small: bool) -> None:
    """Prepare one case in a worker process, print its peak memory, then one line of times for each line read.

    The imports are those of the checkout whose ``src`` and ``benchmarks`` are in PYTHONPATH.
    """
    import clock
    import noise
    import torch
    from rows.meta import meta_update
    from rows.pacs import photographs
    from rows.run import SMALL, Size, algorithm

    from pogm.algorithms.pogm import POGM
    from pogm.engine.engine import Engine
    from pogm.engine.session import Session

    size = SMALL if small else Size()
    torch_device, precision = torch.device(device), "fp32" if device == "cpu" else "bf16"
    if device == "cpu":
        torch.set_num_threads(1)
    engine = Engine(device, compile=compile)
    kind, method, *count = case.split("-")
    if kind == "meta":
        task = photographs(POGM(kappa=0.5, inner_optimizer=method, centre="mean"), size, precision)
        session = meta_update(task, engine)
    elif kind == "pacs":
        session = Session([photographs(algorithm(method, size.inner_steps), size, precision)], engine)
    else:
        images = {"data": None, "images": size.images, "batch_size": size.batch, "precision": precision}
        trials = range(int(count[0]) if count and not small else 1 + len(count))
        session = Session(
            [
                noise.colored_mnist(algorithm(method), seed=seed, lr=1e-3 * (1 + seed / 100), **images)
                for seed in trials
            ],
            engine,
        )
    functions: dict[str, Callable[[], Any]] = {"step": session.step}
    if kind == "mnist":
        functions["evaluation"] = session.accuracies
    for function in functions.values():
        for _ in range(2):  # compiles and captures
            function()
    clock.wait(torch_device)
    gb = torch.cuda.max_memory_allocated() / 1e9 if device != "cpu" else None
    print(json.dumps({"peak_gb": gb}), flush=True)
    for _ in sys.stdin:
        times = {name: clock.seconds(function, torch_device, 1, size.lasting) for name, function in functions.items()}
        print(json.dumps({name: 1e3 * took.value for name, took in times.items()}), flush=True)


@dataclass
class Worker:
    """Worker process of one version and one case."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, tree: Path, case: str, cache: Path, options: argparse.Namespace) -> "Worker":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([f"{tree}/src", f"{tree}/benchmarks", os.environ.get("PYTHONPATH", "")]),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": COMPILE_THREADS,
        }
        command = [sys.executable, "-P", __file__, "--worker", case, "--device", options.device]
        command += ["--compile", options.compile, *["--small"] * options.small]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return cls(subprocess.Popen(command, env=environment, text=True, **pipes))

    def ask(self) -> None:
        """Let the worker measure once."""
        pipe = cast(IO[str], self.process.stdin)
        pipe.write("\n")
        pipe.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next line of the worker."""
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise SystemExit(f"A worker ended with status {self.process.wait()}; its error is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def compare(old: Path, new: Path, options: argparse.Namespace, cache: Path) -> list[dict[str, Any]]:
    """Return one row for every case and quantity."""
    pairs = {
        case: [Worker.start(tree, case, cache / f"{case}-{number}", options) for number, tree in enumerate((old, new))]
        for case in options.cases
    }
    rows = []
    try:
        memory = {case: [worker.answer()["peak_gb"] for worker in pair] for case, pair in pairs.items()}
        for case, pair in pairs.items():
            found: list[list[dict[str, float]]] = [[], []]
            for repeat in range(options.repeats):
                for number in (0, 1) if repeat % 2 else (1, 0):
                    pair[number].ask()
                    found[number].append(pair[number].answer())
            for name in found[0][0]:
                times = [[answer[name] for answer in answers] for answers in found]
                rows.append(row(f"{case}, {name}", "ms", times))
            if memory[case][0] is not None:
                rows.append(row(f"{case}, peak memory", "GB", [[value] for value in memory[case]]))
            for worker in pair:
                worker.stop()
    finally:
        for pair in pairs.values():
            for worker in pair:
                worker.stop()
    return rows


def row(name: str, unit: str, values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return and print the medians of both versions, and the median of the ratios of paired repeats."""
    old, new = values
    ratios = sorted(b / a for a, b in zip(old, new, strict=True))
    found = {"name": name, "unit": unit, "old": median(old), "new": median(new), "ratio": median(ratios)}
    found |= {"lowest_ratio": ratios[0], "highest_ratio": ratios[-1], "repeats": len(ratios)}
    print(
        "| {name} | {old:.4g} | {new:.4g} {unit} | {ratio:.3f} ({lowest_ratio:.3f}–{highest_ratio:.3f}) |".format(
            **found
        )
    )
    sys.stdout.flush()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "trees", nargs="*", type=Path, metavar="TREE", help="checkout of the old and of the new version"
    )
    parser.add_argument("--device", default="cuda", help="device of all cases (default: cuda)")
    parser.add_argument("--compile", choices=("on", "off"), default="on", help="compile marked functions (default: on)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="cases (default: all)")
    parser.add_argument("--repeats", type=int, default=9, help="times that each version is measured (default: 9)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--out", type=Path, help="file for the results, JSON")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.device, options.compile, options.small)
        return
    if len(options.trees) != 2:
        parser.error(f"expected two checkouts, OLD and NEW; found {len(options.trees)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pogm-compare-", ignore_cleanup_errors=True) as cache:
        rows = compare(*(tree.resolve() for tree in options.trees), options, Path(cache))
    result = {"benchmark": "compare", "rows": rows, "seconds": time.monotonic() - began}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
