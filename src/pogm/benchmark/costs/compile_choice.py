"""The choice of ``--compile auto`` on a GPU: compile if that saves more time than it takes.

``reference_costs.json`` has, for each measured network, the time of compilation with an empty compiler cache
(``compile_seconds``) and with a cache that has the same code (``warm_compile_seconds``, if it was measured), one run
each; and the time of an uncompiled minibatch divided by that of a compiled one (``uncompiled_ratio``). The uncompiled
time is that of the handwritten loops in ``speed_h200.json``; evaluations are assumed to have the same ratio. Networks
that were not measured, and deterministic runs, are compiled from `LONG_RUN_STEPS` minibatches on: the bits of a
deterministic run must depend neither on the other runs of a sweep nor on a cache.
"""

import getpass
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from pogm._system.files import digest
from pogm.benchmark.costs.reference import measured_network, run_cost
from pogm.benchmark.plan.trial import Trial
from pogm.engine.engine import Engine

LONG_RUN_STEPS = 1000  # smallest length of a run, in minibatches, for which an unmeasured network is compiled


def choose_compile(engine: Engine, trial: Trial, runs: int = 1, processes: int = 1, sizes: int = 1) -> Engine:
    """Return the engine with "on", "off" or "dynamic" instead of "auto".

    Args:
        engine: The engine of the command.
        trial: The trial to run.
        runs: Number of runs, with this one, that can use the same compiled code in the same process.
        processes: Number of processes that share the GPU. While one of them compiles, the others train.
        sizes: Number of different minibatch sizes of these runs.
    """
    if engine.compile != "auto":
        return engine
    if not engine.compiles():  # a CPU, or no Triton
        return replace(engine, compile="off")
    compiles = None if engine.deterministic else pays_off(trial, runs, is_cached(engine, trial), processes)
    if compiles is None:
        compiles = trial.steps >= LONG_RUN_STEPS
    return replace(engine, compile=mode(compiles, sizes))


def mode(compiles: bool, sizes: int) -> str:
    """Return "on", or "dynamic" for several minibatch sizes, or "off" if nothing is compiled."""
    return ("dynamic" if sizes > 1 else "on") if compiles else "off"


def pays_off(trial: Trial, runs: int, is_warm: bool, processes: int = 1) -> bool | None:
    """Return whether compilation saves more time than it takes; None if the network or the method was not measured.

    What is counted is time of the GPU: while one of several processes compiles, the others use it.
    """
    cost, network = run_cost(trial), measured_network(trial.training.network)
    if cost.train_seconds is None or network is None:
        return None
    compiled_seconds = cost.train_seconds + (cost.evaluation_seconds or 0.0)
    saved: float = runs * compiled_seconds * (network["uncompiled_ratio"] - 1)
    needed: float = network["compile_seconds"]
    if is_warm:
        needed = network.get("warm_compile_seconds", needed)
    return saved >= needed / processes


def shape_key(trial: Trial, with_batch_size: bool = True) -> str:
    """Return a text that is equal for trials that use the same compiled code.

    Args:
        trial: The trial.
        with_batch_size: False for code that was compiled for all minibatch sizes.
    """
    task = trial.task(None)
    return str([task.transform.shape, *task.shape(with_batch_size).items()])


def is_cached(engine: Engine, trial: Trial) -> bool:
    """Return whether an earlier run on this machine has left the compiled code of a trial in the compiler's cache."""
    return _marker(engine, [trial]).exists()


def note_cached(engine: Engine, trials: Sequence[Trial]) -> None:
    """Note that the compiler's cache has the code of a batch of trials now."""
    with suppress(OSError):  # the cache saves time only
        path = _marker(engine, trials)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _marker(engine: Engine, trials: Sequence[Trial]) -> Path:
    """Return the file that marks cached code. It is in the cache folder of torch.compile: both are deleted together."""
    default = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default)
    facts = [torch.__version__, torch.cuda.get_device_name(engine.torch_device()), shape_key(trials[0])]
    return folder / "pogm" / digest(str(facts).encode())
