"""Time of our step on a CPU, divided by that of a handwritten loop."""

from collections.abc import Iterator
from functools import partial

import bare
import clock
import noise

from pogm.engine.session import Session
from rows.figure import Figure
from rows.run import Measurement, Run, algorithm


def cpu(run: Run) -> Iterator[Measurement]:
    """Yield the measurements of our step, divided by the time of a handwritten loop."""
    for network in run.size.cases:
        for method in ("ERM", "POGM"):
            shape, size = ((3, 224, 224), 2) if network == "resnet50" else ((2, 28, 28), 16)
            name = f"CPU, {method}, {network}, 2 × {size} images of {'×'.join(map(str, shape))}"
            yield name, partial(cpu_ratio, run, network, method, shape, size)


def cpu_ratio(run: Run, network: str, method: str, shape: tuple[int, int, int], size: int) -> Figure:
    """Measure our step and the handwritten one alternately, and return the ratio of their times."""
    task = noise.task(algorithm(method), shape=shape, network=network, batch_size=size)
    session = Session([task], run.engine)
    by_hand = bare.network(network, shape, task.dataset.num_classes)
    made = bare.Erm(by_hand) if method == "ERM" else bare.Pogm(by_hand, 2)
    theirs = bare.loop(made, bare.Data(2, 80, shape, task.dataset.num_classes, run.device), size)
    took, seconds = clock.ratio(session.step, theirs, 3 * run.size.repeats, run.size.lasting)
    note = f"handwritten version {1e3 * seconds:.3g} ms"
    return Figure("", "×", took.value, took.low, took.high, floor=1.0, target=1.15, note=note)
