"""Time of a step and of an evaluation of the MNIST CNN with and without the kernel of bias, ReLU and group norm.

python benchmarks/mnist_kernel.py [--data FOLDER] [--steps 401] [--out mnist_kernel_h200.json]

A ColoredMNIST trial of ERM (2 domains of 64 images, bf16, compiled), first with the Triton kernel of
`pogm.core.relu_group_norm`, then with the kernels that the compiler makes; then 16 trials with different minibatch
sizes in one batch (`--compile dynamic`). Evaluations predict all 70,000 images. Data: MNIST if the folder has it, else
noise. It needs a GPU.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import noise
import torch
from rows.mnist import trial_seconds
from rows.run import algorithm, facts

import pogm.models.layers as layers
from pogm.engine.engine import Engine
from pogm.engine.trainer import Schedule

PROTOCOL = 5001  # steps of a trial
MIXED = 16  # trials with different minibatch sizes


def measure(sizes: list[int], compile: str, options: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Return the milliseconds of a step and of an evaluation of a trial, and the seconds of the first calls."""
    torch._dynamo.reset()
    tasks = [
        noise.colored_mnist(
            algorithm("ERM"), data=options.data, images=70_000, batch_size=size, seed=seed, lr=1e-3, precision="bf16"
        )
        for seed, size in enumerate(sizes)
    ]
    found = trial_seconds(tasks, Engine(device="cuda", compile=compile), Schedule(steps, 100), PROTOCOL)
    return {
        "batch_sizes": sizes,
        "compile": compile,
        "kernel": layers.HAS_TRITON,
        "step_ms": round(1e3 * found["step"] / len(sizes), 3),
        "evaluation_ms": round(1e3 * found["evaluation"] / len(sizes), 1),
        "first_calls_s": round(found["first_calls"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=401)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for layers.HAS_TRITON in (True, False):
        rows.append(measure([64], "on", options, options.steps))
        print(rows[-1], flush=True)
    layers.HAS_TRITON = True
    draw = random.Random(0)
    rows.append(measure([int(2 ** draw.uniform(3, 9)) for _ in range(MIXED)], "dynamic", options, options.steps // 2))
    print(rows[-1], flush=True)
    if options.out:
        content = {**facts("mnist_kernel", torch.device("cuda"), []), "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
