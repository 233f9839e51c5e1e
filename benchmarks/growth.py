"""Scaling of cost: time and memory against domains, weights, minibatches of a round, trials at once, and images.

python benchmarks/growth.py --device cuda [--sweeps domains weights ...] [--engine compile=on ...] [--out X.json]

The images are noise, so no data are needed. On a GPU the script measures the MNIST CNN with 64 images of each domain;
on a CPU smaller sizes, on one thread. It prints the exponent (the slope in a log-log plot) of each quantity: over all
points, and between the two largest, where fixed costs matter least. Memory is that of tensors, including the session.

python benchmarks/growth.py --plot docs/images X.json

draws the results.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clock
import noise
import torch
from rows.figure import reason
from rows.meta import count_weights, meta_update
from rows.run import engine_options, facts

from pogm.algorithms.pogm import POGM
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.report.draw import write_svg
from pogm.report.figure import Cloud, Figure, Line, Panel, Point

REFERENCE = 6  # the grey of the palette
HIDDEN = 128  # width of the MLP: about this many weights for each pixel


@dataclass(frozen=True)
class Size:
    """Values of each sweep, and the sizes of everything that is not swept."""

    domains: tuple[int, ...] = (2, 4, 8, 16, 32, 64)  # K
    weights: tuple[int, ...] = (10**5, 10**6, 10**7, 10**8)  # P
    minibatches: tuple[int, ...] = (1, 2, 5, 10)  # E
    trials: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # T
    images: tuple[int, ...] = (70_000, 140_000, 280_000, 560_000)  # N
    network: str = "mnist_cnn"
    batch: int = 64
    repeats: int = 5
    lasting: float = 0.1  # seconds, of each repeat


CPU = Size(
    domains=(2, 4, 8, 16),
    weights=(10**5, 10**6, 10**7),
    trials=(1, 2, 4, 8, 16),
    images=(1000, 2000, 4000, 8000),  # the last two take more than one pass
    batch=8,
    repeats=3,
    lasting=0.05,
)
SMALL = Size((2, 4), (10**4, 10**5), (1, 2), (1, 2), (60, 120), "mlp", batch=2, repeats=3, lasting=0.01)


@dataclass(frozen=True)
class Sweep:
    """One measurement and the quantity that it is measured against."""

    what: str
    symbol: str
    against: str
    values: Callable[[Size], tuple[int, ...]]
    measure: Callable[[int, Size, Engine], dict[str, float]]
    logarithmic: bool = False


def measure(
    make: Callable[[], Session], device: torch.device, size: Size, call: Callable[[Session], Any] = Session.step
) -> tuple[dict[str, float], Session]:
    """Return the seconds of one call of a session and the gigabytes of everything, and the session."""
    with clock.Memory(device) as memory:
        session = make()
        for _ in range(2):
            call(session)
    took = clock.seconds(lambda: call(session), device, size.repeats, size.lasting)
    return {"seconds": took.value, "low": took.low, "high": took.high, "gb": memory.peak / 1e9}, session


def measure_round(K: int, E: int, T: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure a round of POGM."""
    tasks = [
        noise.task(
            POGM(inner_steps=E, centre="mean"),
            K=K,
            network=size.network,
            batch_size=size.batch,
            images=100 * (K + 1),
            seed=seed,
            lr=1e-3 * (1 + seed / 100),
        )
        for seed in range(T)
    ]
    return measure(lambda: Session(tasks, engine), engine.torch_device(), size)[0]


def over_domains(K: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure a round with K domains, E = 1 and one trial."""
    return measure_round(K, 1, 1, size, engine)


def over_minibatches(E: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure a round with E minibatches, K = 2 and one trial."""
    return measure_round(2, E, 1, size, engine)


def over_trials(T: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure a round of T trials that differ in seed and learning rate, with K = 2 and E = 1."""
    return measure_round(2, 1, T, size, engine)


def over_weights(P: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure the meta-update of three domains, on an MLP with a first layer that gives P weights in total."""
    shape = (1, 1, max(P // HIDDEN - HIDDEN, 1))
    method = POGM(inner_optimizer="sgd", centre="mean")
    task = noise.task(method, K=3, shape=shape, network="mlp", batch_size=1, images=4 * 10, lr=1e-5)
    found, session = measure(lambda: meta_update(task, engine), engine.torch_device(), size)
    return found | {"x": count_weights(session)}


def over_images(N: int, size: Size, engine: Engine) -> dict[str, float]:
    """Measure an evaluation of N images, and a step, whose time should not depend on N."""
    task = noise.task(POGM(centre="mean"), network=size.network, batch_size=size.batch, images=N)
    found, session = measure(lambda: Session([task], engine), engine.torch_device(), size, Session.accuracies)
    step = clock.seconds(session.step, session.device, size.repeats, size.lasting)
    return found | {"step": step.value}


SWEEPS = {
    "domains": Sweep("a round", "K", "domains K", lambda size: size.domains, over_domains),
    "weights": Sweep("meta-update", "P", "weights P", lambda size: size.weights, over_weights, logarithmic=True),
    "minibatches": Sweep("a round", "E", "minibatches E", lambda size: size.minibatches, over_minibatches),
    "trials": Sweep("a round of all", "T", "trials T", lambda size: size.trials, over_trials),
    "images": Sweep("an evaluation", "N", "images N", lambda size: size.images, over_images),
}


def exponent(points: Sequence[dict[str, float]], what: str = "seconds") -> float:
    """Return the slope of log y against log x, by least squares; NaN with fewer than two points above zero."""
    known = [(math.log(p["x"]), math.log(p[what])) for p in points if p.get(what, 0) > 0]
    if len(known) < 2:
        return math.nan
    x_mean, y_mean = (sum(column) / len(known) for column in zip(*known, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in known) / sum((x - x_mean) ** 2 for x, _ in known)


def law(name: str, points: Sequence[dict[str, float]], what: str = "seconds") -> str:
    """Return the exponents as text: ``meta-update ~ P^0.98``."""
    sweep, subject = SWEEPS[name], {"seconds": "", "gb": ", memory", "step": ", time of a step"}[what]
    whole, last = exponent(points, what), exponent(points[-2:], what)
    return (
        f"{sweep.what}{subject} ~ {sweep.symbol}^{whole:.2f} ({sweep.symbol}^{last:.2f} between the two largest values)"
    )


def laws(name: str, points: Sequence[dict[str, float]]) -> list[str]:
    """Return the exponents of every quantity that can be fitted, as text."""
    kinds = [what for what in ("seconds", "gb", "step") if not math.isnan(exponent(points, what))]
    return [law(name, points, what) for what in kinds]


def section(found: dict[str, Any]) -> Iterator[str]:
    """Yield the section of the page: for each sweep its exponents, its numbers and its plot."""
    for name, points in found["sweeps"].items():
        known = [point for point in points if "seconds" in point]
        sweep = SWEEPS[name]
        yield f"### {sweep.against[0].upper()}{sweep.against[1:]}\n"
        yield ". ".join(laws(name, known)) + ".\n"
        yield f"| {sweep.symbol} | {sweep.what}, ms | memory, GB |\n|---|---|---|"
        for point in points:
            numbers = f"{1e3 * point['seconds']:.4g} | {point['gb']:.3g}" if point in known else f"{point['failed']} | "
            yield f"| {point['x']:,.0f} | {numbers} |"
        yield f"\n![{sweep.what} against {sweep.against}](images/{stem(name, found['device'])}.svg)\n"


def stem(name: str, device: str) -> str:
    """Return the file name of a plot, without suffix."""
    return f"growth_{name}_{device.split()[-1].lower()}"


def figure(name: str, points: Sequence[dict[str, float]], device: str) -> Figure:
    """Return a figure of time and memory, with a line in proportion to the work; log-log axes for weights."""
    sweep = SWEEPS[name]
    known = [point for point in points if "seconds" in point]
    panels = _panel(sweep, known, "seconds", "time", 1e3, "ms"), _panel(sweep, known, "gb", "memory", 1e3, "MB")
    return Figure(stem(name, device), f"{sweep.what} against {sweep.against}, {device}", panels)


def _panel(sweep: Sweep, points: list[dict[str, float]], what: str, title: str, unit: float, symbol: str) -> Panel:
    last = points[-1]
    proportional = [unit * last[what] * point["x"] / last["x"] for point in points]

    def at(x: float, y: float) -> Point:
        return Point(math.log10(x), math.log10(max(y, 1e-9))) if sweep.logarithmic else Point(x, y)

    seen = tuple(at(point["x"], unit * point[what]) for point in points)
    law = tuple(at(point["x"], y) for point, y in zip(points, proportional, strict=True))
    label = f"{sweep.against}, log10" if sweep.logarithmic else sweep.against
    marks = (Line("in proportion to the work", law, REFERENCE), Line("measured", seen), Cloud("", seen))
    return Panel(
        f"{sweep.what}, {title}",
        marks,
        x_label=label,
        y_label=f"{symbol}, log10" if sweep.logarithmic else symbol,
        x_range=None if sweep.logarithmic else (0.0, last["x"]),
        y_range=None if sweep.logarithmic else (0.0, max(p.y for p in (*seen, *law))),
    )


def plot(folder: Path, found: dict[str, Any]) -> list[Path]:
    """Write an SVG for every sweep and return the paths."""
    paths = []
    for name, points in found["sweeps"].items():
        if sum("seconds" in point for point in points) > 1:
            drawn = figure(name, points, found["device"])
            paths.append(write_svg(drawn, folder / f"{drawn.name}.svg"))
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--engine", nargs="+", default=[], metavar="NAME=VALUE", help="options of the engine")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which no measurement starts")
    parser.add_argument("--small", action="store_true", help="use tiny sizes, to test the script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="draw the results of a file into this folder, and measure nothing")
    parser.add_argument("results", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    if options.plot:
        for path in plot(options.plot, json.loads(options.results.read_text())):
            print(path)
        return

    engine = Engine(device=options.device, **engine_options(options.engine))
    device = engine.torch_device()
    if device.type == "cpu":
        torch.set_num_threads(1)
    size = SMALL if options.small else CPU if device.type == "cpu" else Size()
    found: dict[str, Any] = {**facts("growth", device, arguments), "sweeps": {}}
    ends = time.monotonic() + options.limit
    for name in options.sweeps:
        points = found["sweeps"].setdefault(name, [])
        for value in SWEEPS[name].values(size):
            try:
                if time.monotonic() > ends:
                    raise TimeoutError("not started: time limit reached (--limit)")
                point: dict[str, Any] = {"x": value} | SWEEPS[name].measure(value, size, engine)
            except Exception as error:
                point = {"x": value, "failed": reason(error)}
            clock.free_memory(device)
            points.append(point)
            print(name, point, flush=True)
            if options.out:  # results so far
                options.out.write_text(json.dumps(found, indent=1) + "\n")
        for line in laws(name, [point for point in points if "seconds" in point]):
            print(line, flush=True)


if __name__ == "__main__":
    main()
