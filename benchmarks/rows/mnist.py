"""A ColoredMNIST trial of protocol size, alone and several at once."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import bare
import clock
import noise
from clock import Spread

from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.task import Task
from pogm.engine.trainer import Schedule, train
from rows.figure import Figure
from rows.run import Measurement, Run, algorithm

# Given with the task, not measured here (H200, torch 2.11): DomainBed b93c22a; the authors' POGM 84c0c54, repaired.
REFERENCES = {"ERM": ("DomainBed's ERM", 165.0), "POGM": ("the authors' POGM, E = 1", 535.0)}


def mnist(run: Run) -> Iterator[Measurement]:
    """Yield the measurements of single trials, and of several similar trials in one session."""
    for precision in run.precisions:
        for method in ("POGM", "ERM"):
            yield f"ColoredMNIST trial, {method}, {precision}", partial(mnist_trial, run, method, precision, 1)
    count, precision = run.size.together, run.precisions[0]
    name = f"ColoredMNIST trial, POGM, {precision}, one of {count} at once"
    yield name, partial(mnist_trial, run, "POGM", precision, count)


def mnist_trial(run: Run, method: str, precision: str, count: int) -> Figure:
    """Measure the seconds of one trial, from its first step to its last evaluation."""
    size = run.size
    tasks = [
        noise.colored_mnist(
            algorithm(method),
            data=run.data,
            images=size.images,
            batch_size=size.batch,
            seed=seed,
            lr=1e-3 * (1 + seed / 100),
            precision=precision,
        )
        for seed in range(count)
    ]
    steps = size.steps if count == 1 else min(size.together_steps, size.steps)
    parts = trial_seconds(tasks, run.engine, Schedule(steps, size.evaluate_every), size.protocol)
    whole, first = parts["seconds"], parts["first_calls"]
    floor = run.floor(f"ColoredMNIST, {method}, {precision}", partial(mnist_floor, run, method, precision))
    whose, reference = REFERENCES[method]
    note = f"{1e3 * parts['step'] / count:.3g} ms per step, {parts['evaluation'] / count:.3g} s per evaluation"
    note += f", first calls {first:.2g} s, " + ("with compilation, not included" if run.compiles else "included")
    return Figure(
        work="",
        unit="s",
        measured=(whole - first if run.compiles else whole) / count,
        floor=floor.get("seconds"),
        reference=reference,
        whose=whose,
        target={("POGM", True): 7.0, ("POGM", False): 5.0}.get((method, count == 1)),
        extrapolated=steps if steps < size.protocol else None,
        note=note,
        details={**parts, "trials": count, "steps": steps},
    )


def trial_seconds(tasks: list[Task], engine: Engine, schedule: Schedule, protocol: int) -> dict[str, Any]:
    """Train with the real loop; return the times of its parts, and their sum for a trial of ``protocol`` steps.

    ``first_calls`` is the time of the first step, and the additional time of the first evaluation.
    """
    made: list[Session] = []
    device = engine.torch_device()
    setup = clock.time_call(lambda: made.append(Session(tasks, engine)), device)
    (session,) = made
    first = clock.time_call(session.step, device)  # compiles and captures
    minibatches = tasks[0].algorithm.minibatches
    rounds = [1, *schedule.rounds(minibatches)]
    training, evaluations = [], []
    began = last = time.perf_counter()
    for number, seen in enumerate(train(session, schedule)):
        assert seen is not None
        trained = max(rounds[number + 1] - rounds[number], 0) * minibatches
        training.append((seen.seconds_per_step or 0.0) * trained)
        evaluations.append(time.perf_counter() - last - training[-1])
        last = time.perf_counter()
    whole = first + last - began
    step, evaluation = sum(training) / max(schedule.steps - minibatches, 1), Spread.of(evaluations).value
    if schedule.steps < protocol:
        later = len(Schedule(protocol, schedule.evaluate_every).points()) - 1
        whole = first + (protocol - minibatches) * step + evaluations[0] + later * evaluation
    return {
        "seconds": whole,
        "setup": setup,
        "first_calls": first + max(evaluations[0] - evaluation, 0.0),
        "step": step,
        "evaluation": evaluation,
        "evaluations": len(evaluations),
        "diverged": sum(session.diverged()),
    }


def mnist_floor(run: Run, method: str, precision: str) -> dict[str, float]:
    """Measure the handwritten loop: a step as a CUDA graph, not compiled, and an evaluation in large batches."""
    size, device, shape = run.size, run.device, (2, 28, 28)
    with bare.precision(precision) as autocast:
        network = bare.network("mnist_cnn", shape, 2).to(device)
        data = bare.Data(2, size.images // 3, shape, 2, device)
        made = bare.Erm(network, autocast=autocast) if method == "ERM" else bare.Pogm(network, 2, autocast=autocast)
        step = clock.seconds(clock.capture(bare.loop(made, data, size.batch), device), device, lasting=size.lasting)
        everything = bare.Data(3, size.images // 3, shape, 2, device)
        evaluation = clock.seconds(bare.evaluation(network, everything, 10_000, autocast), device, 3, 0)
    looks = len(Schedule(size.protocol, size.evaluate_every).points())
    seconds = size.protocol * step.value + looks * evaluation.value
    return {"step": step.value, "evaluation": evaluation.value, "seconds": seconds}
