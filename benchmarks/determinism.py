"""Cost and proof of deterministic runs on a GPU.

python benchmarks/determinism.py --device cuda [--cases pacs-ERM ...] [--steps 60] [--out determinism_h200.json]

Cases: a minibatch of PACS (3 x 32 images of 224 x 224, ResNet-50) and of ColoredMNIST (2 x 64 images, MNIST CNN), with
ERM and POGM, in bf16, compiled and captured as a CUDA graph. Images are noise of the right shape.

Proof: two processes for each case, each with an empty compiler cache of its own. Both train ``--steps`` rounds without
and with ``deterministic``, in opposite order. The SHA-256 of weights, optimizer state and metrics must be equal with
the option. All processes compile and train at the same time, so that timing inside the compiler is disturbed, as it is
on a busy machine.

Cost: afterwards the first process of each case times both sessions in turns, while all other processes wait.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import clock
import noise
import torch
from clock import Spread
from rows.figure import reason
from rows.pacs import photographs
from rows.run import SMALL, Size, algorithm, facts, use_cache

from pogm._system.determinism import fix_cublas_workspace
from pogm.core import trees
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.task import Task

CASES = ("pacs-ERM", "pacs-POGM", "mnist-ERM", "mnist-POGM")
MODES = ("default", "deterministic")
PROCESSES = 2  # of each case
COMPILE_THREADS = "4"  # of each process: all of them compile at the same time


@dataclass(frozen=True)
class Plan:
    """Work of one process."""

    case: str
    device: str
    compile: str
    precision: str
    size: Size
    steps: int
    repeats: int
    order: tuple[str, ...]  # order of the modes

    def task(self) -> Task:
        """Return the task of the case."""
        data, _, method = self.case.partition("-")
        if data == "pacs":
            return photographs(algorithm(method, self.size.inner_steps), self.size, self.precision)
        return noise.colored_mnist(
            algorithm(method),
            data=None,
            images=self.size.images,
            batch_size=self.size.batch,
            seed=0,
            lr=1e-3,
            precision=self.precision,
        )


def digest(session: Session) -> str:
    """Return the SHA-256 of the whole state of a session: weights, optimizers, buffers, sums of metrics."""
    found = hashlib.sha256()
    for name, leaf in trees.named_leaves(session.train_state):
        found.update(name.encode())
        found.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def serve(pipe: Connection, plan: Plan) -> None:
    """Train in both modes and send the digests; then send times on every request."""
    try:
        if plan.device == "cpu":
            torch.set_num_threads(1)
        else:
            fix_cublas_workspace()  # for both modes, since cuBLAS reads it once; on Hopper it is torch's default size
        sessions: dict[str, Session] = {}
        found: dict[str, Any] = {}
        for mode in plan.order:
            engine = Engine(plan.device, compile=plan.compile, deterministic=mode == "deterministic")
            session = sessions[mode] = Session([plan.task()], engine)
            first = clock.time_call(session.step, session.device)
            for _ in range(plan.steps - 1):
                session.step()
            found[mode] = {"digest": digest(session), "first_call": first}
        pipe.send(found)
        while pipe.recv() is not None:
            pipe.send(times(sessions, plan))
    except EOFError:
        return
    except Exception as error:
        pipe.send({"failed": reason(error)})


def times(sessions: dict[str, Session], plan: Plan) -> dict[str, list[float]]:
    """Return milliseconds per minibatch of all domains, by mode; every repeat measures both modes."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(plan.repeats):
        for mode in MODES if number % 2 else reversed(MODES):
            session = sessions[mode]
            took = clock.seconds(session.step, session.device, 1, plan.size.lasting).value
            found[mode].append(1e3 * took / session.tasks[0].algorithm.minibatches)
    return found


class Process:
    """One process of a case."""

    def __init__(self, plan: Plan, cache: Path):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs, plan), daemon=False)
        with use_cache(str(cache)):
            self.process.start()
        theirs.close()

    def answer(self, until: float) -> dict[str, Any]:
        """Return the next message of the process, or ``failed`` with a reason if it dies or takes too long."""
        try:
            if not self.pipe.poll(max(until - time.monotonic(), 0.1)):
                return {"failed": "not done within the time (--limit)"}
            answer: dict[str, Any] = self.pipe.recv()
        except (EOFError, ConnectionError):
            return {"failed": "its process died"}
        return answer

    def end(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def measure(plans: dict[str, list[Plan]], cache: Path, limit: float) -> dict[str, dict[str, Any]]:
    """Return digests and times of every case."""
    until = time.monotonic() + limit
    crews = {
        case: [Process(plan, cache / f"{case}-{number}") for number, plan in enumerate(alike)]
        for case, alike in plans.items()
    }
    try:
        proofs = {case: [one.answer(until) for one in crew] for case, crew in crews.items()}
        found = {}
        for case, answers in proofs.items():
            failed = next((answer["failed"] for answer in answers if "failed" in answer), None)
            if failed is None:
                crews[case][0].pipe.send("time")
                took = crews[case][0].answer(until)
                failed = took.get("failed")
            found[case] = {"failed": failed} if failed else summary(answers, took)
            print(f"{case}: {'; '.join(line(case, found[case])[1:])}", flush=True)
        return found
    finally:
        for crew in crews.values():
            for one in crew:
                one.end()


def summary(answers: Sequence[dict[str, Any]], took: dict[str, list[float]]) -> dict[str, Any]:
    """Return the results of one case."""
    digests = {mode: [answer[mode]["digest"] for answer in answers] for mode in MODES}
    ratios = [slow / fast for slow, fast in zip(took["deterministic"], took["default"], strict=True)]
    return {
        "digests": digests,
        "same": {mode: len(set(found)) == 1 for mode, found in digests.items()},
        "ms": {mode: asdict(Spread.of(took[mode])) for mode in MODES},
        "cost": asdict(Spread.of(ratios)),
        "repeats": took,
        "first_call": {mode: [answer[mode]["first_call"] for answer in answers] for mode in MODES},
    }


HEAD = ("case", "default, ms", "deterministic, ms", "ratio", "default: same bits", "deterministic: same bits")


def line(case: str, found: dict[str, Any]) -> tuple[str, ...]:
    """Return one case as cells of the table."""
    if found.get("failed"):
        return (case, f"failed: {found['failed']}", *[""] * (len(HEAD) - 2))

    def shown(spread: dict[str, float]) -> str:
        return f"{spread['value']:.4g} ({spread['low']:.4g} – {spread['high']:.4g})"

    def bits(mode: str) -> str:
        digests = " ".join(digest[:8] for digest in found["digests"][mode])
        return f"{'yes' if found['same'][mode] else 'no'} ({digests})"

    return (case, *(shown(found["ms"][mode]) for mode in MODES), shown(found["cost"]), *map(bits, MODES))


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return all cases as a Markdown table."""
    rows = [HEAD, ("---",) * len(HEAD), *(line(case, found) for case, found in results.items())]
    return [f"| {' | '.join(row)} |" for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--compile", choices=("on", "off"), default="on")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=60, help="rounds of training for the digests (default 60)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats of each time (default 9)")
    parser.add_argument(
        "--limit", type=float, default=570.0, help="time limit of the whole script, in seconds (default 570)"
    )
    parser.add_argument("--small", action="store_true", help="use tiny sizes, to test the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    size = SMALL if options.small else Size()

    def plan(case: str, number: int) -> Plan:
        order = MODES if number % 2 else MODES[::-1]
        how = (options.device, options.compile, options.precision, size, options.steps, options.repeats)
        return Plan(case, *how, order)

    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", COMPILE_THREADS)
    began = time.monotonic()
    plans = {case: [plan(case, number) for number in range(PROCESSES)] for case in options.cases}
    with tempfile.TemporaryDirectory(prefix="pogm-determinism-", ignore_cleanup_errors=True) as cache:
        results = measure(plans, Path(cache), options.limit)
    device = torch.device(options.device)
    found = {
        **facts("determinism", device, arguments),
        "compile": options.compile,
        "precision": options.precision,
        "steps": options.steps,
        "seconds": time.monotonic() - began,
        "cases": results,
    }
    print("\n".join(["", f"{found['device']}, torch {found['torch']}, {options.steps} rounds", "", *table(results)]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
