"""Time of a step of `Learner`, divided by that of a handwritten loop and by that of `pogm run`, on the same machine.

python benchmarks/learner.py [--device cuda] [--repeats 15] [--out FILE.md]

An MLP with 218,000 weights and 2 × 16 images of 2×28×28, as in the row "CPU" of benchmarks/speed.py. Both sides of a
ratio are measured alternately. The handwritten loop and `pogm run` also draw their minibatches; the Learner gets them
from the same handwritten code.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bare
import clock
import noise
import torch
from rows.run import algorithm

from pogm import Learner
from pogm.core.batch import Batch
from pogm.engine.engine import Engine
from pogm.engine.session import Session

SHAPE, CLASSES, K, SIZE = (2, 28, 28), 10, 2, 16


def learner_step(method: str, data: bare.Data, compiled: bool) -> Callable[[], Any]:
    """Return a function that draws a minibatch and takes a step of a Learner."""
    module = bare.network("mlp", SHAPE, CLASSES).to(data.images.device)
    learner = Learner(module, algorithm(method), lr=1e-3, compile=compiled)
    return lambda: learner.step(Batch(*data.draw(SIZE)))


def session_step(method: str, device: str, compiled: bool) -> Callable[[], Any]:
    """Return the step of `pogm run`."""
    task = noise.task(algorithm(method), K=K, shape=SHAPE, network="mlp", batch_size=SIZE)
    return Session([task], Engine(device=device, compile="on" if compiled else "off")).step


def handwritten_step(method: str, data: bare.Data) -> Callable[[], Any]:
    """Return a handwritten step."""
    module = bare.network("mlp", SHAPE, CLASSES).to(data.images.device)
    return bare.loop(bare.Erm(module) if method == "ERM" else bare.Pogm(module, K), data, SIZE)


def rows(device: str, repeats: int, lasting: float) -> Iterator[str]:
    """Yield the rows of the table."""
    data = bare.Data(K, 80, SHAPE, CLASSES, torch.device(device))
    for method in ("ERM", "POGM"):
        by_hand = handwritten_step(method, data)
        pairs = {
            "`pogm run` / handwritten": (session_step(method, device, False), by_hand),
            "Learner / handwritten": (learner_step(method, data, False), by_hand),
            "Learner(compile=True) / handwritten": (learner_step(method, data, True), by_hand),
            "Learner(compile=True) / `pogm run --compile on`": (
                learner_step(method, data, True),
                session_step(method, device, True),
            ),
        }
        for name, (ours, theirs) in pairs.items():
            took, seconds = clock.ratio(_waiting(ours, device), _waiting(theirs, device), repeats, lasting)
            spread = f"{took.value:.2f} ({took.low:.2f} – {took.high:.2f})"
            yield f"| {method} | {name} | {spread} | {1e3 * seconds:.3g} ms |"


def _waiting(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Return a step that waits for the device, after two calls that compile and record it."""

    def waited() -> None:
        step()
        clock.wait(torch.device(device))

    for _ in range(2):
        waited()
    return waited


def main() -> None:
    """Print the table, and write it to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lasting", type=float, default=0.1, help="seconds of one repeat")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = ["| method | ratio | measured (quartiles) | time of the reference |", "|---|---|---|---|"]
    print("\n".join(lines))
    for line in rows(options.device, options.repeats, options.lasting):
        print(line, flush=True)
        lines.append(line)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
