"""Memory of a very large model, with POGM's K trajectories and inner optimizers in each storage.

python benchmarks/memory.py --device cuda [--weights 1e9] [--domains 4] [--budget-gb adam=60 sgd=40] [--out FILE.json]
python benchmarks/memory.py --device cpu [--weights 1e7] [--out FILE.json]

The storages are "device", "bf16" (on the device, in bfloat16), "host" and "auto". The model is an MLP with two hidden
layers on 8×8 digits. Their width gives the number of weights, so nearly all memory is weights. On a GPU torch may
allocate at most the budget; a case that needs more runs out of memory. The default budget is half-way between the peak
of "device" and that of a smaller storage: "bf16" with SGD, which keeps no state, or "host" with Adam, which keeps two
vectors for each domain. Both peaks are measured with a small model and scaled. "auto" knows the budget. On a CPU, host
and device share one memory: the script compares the peaks of the processes and sets no budget. Every case runs in its
own process.
"""

import argparse
import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rows.run import facts

STORAGES = ("device", "bf16", "host", "auto")
OPTIMIZERS = ("sgd", "adam")
SMALL = 2**26  # weights of the model that determines the default budget
INPUTS, CLASSES, DOMAINS = 64, 10, 6  # of RotatedDigits
GIB = 2**30


def find_width(weights: float) -> int:
    """Return the width w for which 64·w + w² + 10·w, with biases, is about this number of weights."""
    linear = INPUTS + CLASSES + 2
    return max(8, round((-linear + math.sqrt(linear**2 + 4 * weights)) / 2))


def case(options: argparse.Namespace) -> dict[str, Any]:
    """Run some rounds of POGM with one storage; return their time and the peak memory."""
    from pogm import POGM
    from pogm.benchmark.plan.trial import Trial
    from pogm.data.datasets import dataset_class
    from pogm.engine.engine import Engine
    from pogm.engine.session import Session
    from pogm.models import mlp

    on_gpu, number = options.device.startswith("cuda"), torch.device(options.device).index or 0
    if on_gpu and options.budget:
        total = torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.budget * GIB / total), number)
    if not on_gpu:
        torch.set_num_threads(1)  # so that times depend less on other processes
    mlp.WIDTH = find_width(options.weights)
    data = dataset_class("RotatedDigits")()
    trial = Trial(
        dataset=data,
        algorithm=POGM(inner_optimizer=options.optimizer, centre="mean"),
        test_domains=tuple(range(DOMAINS - options.domains)),
        training=dataclasses.replace(data.training, batch_size=32, lr=1e-4),
        steps=options.rounds + 1,
        evaluate_every=options.rounds + 1,
    )
    budget = options.budget or None
    engine = Engine(options.device, capture=False, domains="loop", trajectories=options.storage, memory_gb=budget)
    found: dict[str, Any] = {"storage": options.storage, "optimizer": options.optimizer}
    try:
        session = Session([trial.task(None)], engine)
        found |= {"chosen": session.trajectory_storage, "weights": session.train_state.state.params.flat.numel()}
        session.step()  # the first allocates
        _wait(on_gpu)
        start = time.perf_counter()
        for _ in range(options.rounds):
            session.step()
        _wait(on_gpu)
        found["seconds_a_round"] = (time.perf_counter() - start) / options.rounds
        found["finite"] = not session.diverged()[0]
    except torch.OutOfMemoryError:
        found["out_of_memory"] = True
    if on_gpu:
        found["device_gib"] = torch.cuda.max_memory_allocated(number) / GIB
        found["host_gib"] = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / GIB  # pinned
    else:
        found["host_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB  # of the process
    return found


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def measure(options: argparse.Namespace, storage: str, optimizer: str, weights: float, budget: float) -> dict[str, Any]:
    """Run a case in its own process and return its results."""
    arguments = {
        "device": options.device,
        "domains": options.domains,
        "rounds": options.rounds,
        "weights": weights,
        "storage": storage,
        "optimizer": optimizer,
        "budget": budget,
    }
    flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    # Without fragmentation, the peak does not depend on the order of allocations.
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(
        [sys.executable, __file__, "case", *flags], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"storage": storage, "optimizer": optimizer, "failed": f"exit code {done.returncode}: {last}"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def find_budget(options: argparse.Namespace, optimizer: str) -> float:
    """Return the budget in GiB: half-way between the peaks of "device" and of a smaller storage."""
    if optimizer in options.budgets:
        return float(options.budgets[optimizer])
    other = "bf16" if optimizer == "sgd" else "host"
    peaks = [measure(options, storage, optimizer, SMALL, 0)["device_gib"] for storage in ("device", other)]
    return float(sum(peaks) / 2 * options.weights / SMALL)


def line(found: dict[str, Any], budget: float) -> str:
    """Return a row of the table."""
    where = found["storage"] if found["storage"] != "auto" else f"auto: {found.get('chosen', '?')}"
    cells = [found["optimizer"], where, f"{budget:.1f}" if budget else "–"]
    if "failed" in found:
        return f"| {' | '.join(cells)} | {found['failed']} | | |"
    if found.get("out_of_memory"):
        return f"| {' | '.join(cells)} | out of memory | | |"
    device = f"{found['device_gib']:.1f}" if "device_gib" in found else "–"
    return f"| {' | '.join(cells)} | {device} | {found['host_gib']:.1f} | {found['seconds_a_round']:.2f} |"


def main() -> None:
    """Print the table, and write the results if --out is given."""
    options = _parser().parse_args()
    if options.command == "case":
        print(json.dumps(case(options)))
        return
    on_gpu = options.device.startswith("cuda")
    options.weights = options.weights or (1e9 if on_gpu else 1e7)
    options.budgets = dict(text.split("=") for text in options.budget_gb)
    print(f"{options.weights:.3g} weights, K = {options.domains}, {options.device}, torch {torch.__version__}\n")
    print("| inner optimizer | trajectories | budget, GiB | peak on the device | on the host | seconds a round |")
    print("|---|---|---|---|---|---|", flush=True)
    about = facts("memory", torch.device(options.device), sys.argv[1:])
    about |= {name: getattr(options, name) for name in ("weights", "domains", "rounds")}
    rows: list[dict[str, Any]] = []
    for optimizer in OPTIMIZERS:
        budget = find_budget(options, optimizer) if on_gpu else 0.0
        for storage in STORAGES if on_gpu else STORAGES[:3]:
            found = measure(options, storage, optimizer, options.weights, budget) | {"budget_gib": budget}
            print(line(found, budget), flush=True)
            rows.append(found)
            if options.out:
                options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", nargs="?", choices=("table", "case"), default="table", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=float, help="number of weights of the model (default 1e9; on a CPU 1e7)")
    parser.add_argument(
        "--domains", type=int, default=4, choices=range(1, DOMAINS), help="number of training domains K"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure")
    parser.add_argument(
        "--budget-gb", nargs="*", default=[], metavar="OPTIMIZER=GIB", help="memory that torch may allocate"
    )
    parser.add_argument("--out", type=Path, help="file for the results")
    for name in ("storage", "optimizer"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
