"""The meta-update alone: from K trajectories on the device to the new weights."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import bare
import clock
import torch

from pogm.algorithms.copies import Copies
from pogm.algorithms.pogm import POGM
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.task import Task
from pogm.testing import no_synchronisation
from rows.figure import Figure, reason
from rows.pacs import photographs
from rows.run import Measurement, Run


def meta(run: Run) -> Iterator[Measurement]:
    """Yield the meta-update of three trajectories on the device, without and with the states of the inner Adams."""
    name = f"meta-update, {run.size.network}, K = 3"
    yield name, partial(meta_figure, run, "sgd")
    yield f"{name}, the inner Adams' states kept", partial(meta_figure, run, "adam")


def meta_figure(run: Run, inner_optimizer: str) -> Figure:
    """Measure milliseconds, and check that the host does not wait for the device."""
    size, device = run.size, run.device
    task = photographs(POGM(inner_optimizer=inner_optimizer, centre="mean"), size, run.precisions[0])
    session = meta_update(task, run.engine)
    P = count_weights(session)
    took = clock.seconds(session.step, device, size.repeats, size.lasting)
    note = f"P = {P:,}"
    if device.type == "cuda":
        uncaptured = meta_update(task, replace(run.engine, capture=False))
        uncaptured.step()
        try:
            with no_synchronisation():
                uncaptured.step()
            note += ", without a synchronisation"
        except RuntimeError as error:
            note += f", BUT THE HOST WAITS FOR THE DEVICE: {reason(error)}"
    copied = run.floor("copy", partial(copy_floor, run))
    moved = (3 + 2) * 4 * P  # bytes: K trajectories and the weights are read, the weights written
    return Figure(
        work="",
        unit="ms",
        measured=1e3 * took.value,
        low=1e3 * took.low,
        high=1e3 * took.high,
        floor=1e3 * moved / copied["bytes_per_second"] if copied else None,
        target=0.5 if inner_optimizer == "sgd" else None,
        note=note,
        details={"parameters": P, "bytes": moved},
    )


def meta_update(task: Task, engine: Engine) -> Session:
    """Return a session with steps that consist of the meta-update only.

    Every round uses the same trajectories, which were trained before and are on the device.
    """
    session = Session([task], replace(engine, capture=False))
    state, config = session.train_state.state, session.config
    method = task.algorithm
    assert isinstance(method, POGM)
    with torch.no_grad():
        trained = method.copies(state, config.batches(state, session.sample_indices), config.problem)

    class Ended(POGM):
        """POGM with given trajectories."""

        minibatches = 0  # draws no minibatch

        def copies(self, state: State, batches: list[Batch], problem: Problem) -> Copies:
            return trained

    values = {part.name: getattr(method, part.name) for part in dataclasses.fields(method)}
    del session, state, config  # to free everything except the trajectories
    return Session([replace(task, algorithm=Ended(**values))], engine)


def count_weights(session: Session) -> int:
    """Return the number of weights P."""
    return sum(leaf.numel() for leaf in session.train_state.state.params.values())


def copy_floor(run: Run) -> dict[str, float]:
    """Measure the bytes that a copy reads and writes per second."""
    copy, moved = bare.bandwidth_copy(run.size.copied, run.device)
    took = clock.seconds(copy, run.device, run.size.repeats, min(run.size.lasting, 0.1))
    return {"bytes_per_second": moved / took.value}
