"""Time and memory of a minibatch of PACS with a ResNet-50, drawn and augmented."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import bare
import clock
import noise
import torch
from torch import nn

from pogm.algorithms.base import Algorithm
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.task import Task
from rows.figure import Figure
from rows.run import Measurement, Run, Size, algorithm, use_cache

# Given with the task, not measured here (H200, torch 2.11): DomainBed b93c22a; the authors' POGM 84c0c54, repaired.
MS = {"ERM": ("DomainBed's ERM", 71.9), "POGM": ("the authors' POGM, E = 5", 360.0)}
GB = {"ERM": ("DomainBed's ERM, fp32", 8.2), "POGM": ("the authors' POGM", 4.0)}


def pacs(run: Run) -> Iterator[Measurement]:
    """Yield the measurements of time and memory of ERM and POGM, each in its own process."""
    images = 3 * run.size.photographs_batch
    for method in ("ERM", "POGM"):
        name = method if method == "ERM" else f"POGM (E = {run.size.inner_steps})"
        yield f"PACS, {run.size.network}, {images} images, {name}", partial(pacs_time, run, method)
    for method in ("ERM", "POGM"):
        yield f"peak memory, {run.size.network}, {images} images, {method}", partial(pacs_memory, run, method)


def pacs_time(run: Run, method: str) -> Figure:
    """Measure the milliseconds per minibatch of all domains, drawn and augmented."""
    cold = measure_pacs_in_process(run, method)
    note = f"first call {cold['first_call']:.3g} s"
    details = {"cold": cold}
    if run.compiles:
        details["warm"] = warm = measure_pacs_in_process(run, method, again=True)
        note += f" with an empty compiler cache, {warm['first_call']:.3g} s in a second process"
    parts = 1 if method == "ERM" else 3  # one pass over all domains, or one over each
    floor = pacs_floor(run, 3 // parts * run.size.photographs_batch)
    whose, reference = MS[method]
    return Figure(
        work="",
        unit="ms",
        measured=cold["ms"],
        low=cold["low"],
        high=cold["high"],
        floor=None if floor is None else parts * floor,
        reference=reference,
        whose=whose,
        target={"ERM": 18.0, "POGM": 25.0}[method],
        note=note,
        details=details,
    )


def pacs_memory(run: Run, method: str) -> Figure:
    """Measure the peak memory in gigabytes, including stored images and the first call."""
    mine = measure_pacs_in_process(run, method)
    target = 6.0 if method == "ERM" else measure_pacs_in_process(run, "ERM")["gb"]
    whose, reference = GB[method]
    floor = run.floor(f"memory, {method}", partial(pacs_memory_floor, run, method))
    note = f"{mine['images_gb']:.2g} GB of it are images" + (
        "" if method == "ERM" else "; the target is the memory of ERM"
    )
    return Figure(
        work="",
        unit="GB",
        measured=mine["gb"],
        floor=floor.get("gb"),
        reference=reference,
        whose=whose,
        target=target,
        note=note,
        details=mine,
    )


def measure_pacs_in_process(run: Run, method: str, again: bool = False) -> dict[str, float]:
    """Measure in a new process. Its compiler cache is empty; with ``again``, it is that of the first process."""
    name = f"pacs, {method}" + ", again" * again
    arguments = (method, run.engine, run.size, run.precisions[0], again)

    def measure() -> dict[str, float]:
        clock.free_memory(run.device)
        with use_cache(str(run.cache / method)):  # before the process starts: the compiler starts processes, too
            found: dict[str, float] = clock.run_in_process(measure_pacs, *arguments, timeout=max(run.left, 60))
        return found

    result: dict[str, float] = run.once(name, measure)
    return result


def measure_pacs(
    method: str, engine: Engine, size: Size, precision: str, first_alone: bool = False
) -> dict[str, float]:
    """Measure the first call, a minibatch, and the peak memory of a session."""
    device = engine.torch_device()
    if device.type == "cpu":
        torch.set_num_threads(1)
    with clock.Memory(device) as memory:
        session = Session([photographs(algorithm(method, size.inner_steps), size, precision)], engine)
        result = {"first_call": clock.time_call(session.step, device)}
        session.step()
    if first_alone:
        return result
    took = clock.seconds(session.step, device, size.repeats, size.lasting)
    minibatches, images = session.tasks[0].algorithm.minibatches, session.config.table.inputs.shape.numel()
    ms = {name: 1e3 * value / minibatches for name, value in asdict(took).items()}
    return result | {"ms": ms.pop("value"), **ms, "gb": memory.peak / 1e9, "images_gb": images / 1e9}


def photographs(method: Algorithm, size: Size, precision: str) -> Task:
    """Return the task of a method on PACS."""
    return noise.pacs(
        method,
        network=size.network,
        batch_size=size.photographs_batch,
        stored=size.stored,
        image_size=size.seen,
        images=size.photographs,
        precision=precision,
    )


def pacs_floor(run: Run, images: int) -> float | None:
    """Measure the milliseconds of a handwritten gradient as a CUDA graph, compiled if the compiler works."""

    def measure(compiled: bool) -> dict[str, float]:
        size, device = run.size, run.device
        with bare.precision(run.precisions[0]) as autocast:
            gradient = bare.gradient(pacs_by_hand(run), images, size.seen, 7, autocast, compiled)
            first = clock.time_call(gradient, device)
            took = clock.seconds(clock.capture(gradient, device), device, size.repeats, size.lasting)
        clock.free_memory(device)
        return {"ms": 1e3 * took.value, "first_call": first}

    name = f"gradient of {images} images"
    unfused = run.floor(name, partial(measure, compiled=False))
    fused = run.floor(f"{name}, compiled", partial(measure, compiled=True)) if run.size.compiles else {}
    return (fused or unfused).get("ms")


def pacs_memory_floor(run: Run, method: str) -> dict[str, float]:
    """Measure the peak memory of a handwritten step in gigabytes, without compiling."""
    size = run.size
    with bare.precision(run.precisions[0]) as autocast, clock.Memory(run.device) as memory:
        network = pacs_by_hand(run)
        made = bare.Erm(network, autocast=autocast) if method == "ERM" else bare.Pogm(network, 3, autocast=autocast)
        data = bare.Data(3, size.photographs_batch, (3, size.seen, size.seen), 7, run.device)
        for _ in range(2):
            made.step([data.draw(size.photographs_batch)])
    return {"gb": memory.peak / 1e9}


def pacs_by_hand(run: Run) -> nn.Module:
    """Return the handwritten network in the channels-last format."""
    network = bare.network(run.size.network, (3, run.size.seen, run.size.seen), 7)
    return network.to(run.device, memory_format=torch.channels_last)
