"""State that all measurements of a run share: sizes, the engine, the time limit, and floors."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class
from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm import POGM
from pogm.engine.engine import Engine
from rows.figure import Figure, MeasurementError, reason

Measurement = tuple[str, Callable[[], Figure]]  # name, and the function that measures


@dataclass(frozen=True)
class Size:
    """Sizes of all measurements; by default those of the protocol."""

    steps: int = 5001  # of a ColoredMNIST trial
    together_steps: int = 1001  # of several trials at once; the rest is extrapolated
    together: int = 16
    evaluate_every: int = 100
    images: int = 70_000
    batch: int = 64
    network: str = "resnet50"
    stored: int = 227  # PACS: pixels of an image in store, and of one that the network sees
    seen: int = 224
    photographs: int = 128  # of each domain
    photographs_batch: int = 32
    inner_steps: int = 5  # E of POGM on PACS
    copied: int = 2**28  # numbers, to measure bandwidth
    lasting: float = 0.5  # seconds, of each repeat
    repeats: int = 5
    cases: tuple[str, ...] = ("mnist_cnn", "mlp", "resnet50")  # of the CPU's row
    compiles: bool = True  # compile the floors, too

    protocol: int = 5001  # number of steps to which shorter trials are extrapolated


SMALL = Size(
    steps=21,
    together_steps=11,
    together=2,
    evaluate_every=10,
    images=300,
    batch=4,
    network="resnet18",
    stored=35,
    seen=32,
    photographs=20,
    photographs_batch=2,
    inner_steps=2,
    copied=2**16,
    lasting=0.01,
    repeats=3,
    cases=("mlp",),
    compiles=False,
    protocol=21,
)


class Run:
    """State of one run of the benchmark."""

    def __init__(
        self,
        device: str,
        size: Size,
        engine: dict[str, Any],
        precisions: Sequence[str],
        cache: Path,
        data: Path | None = None,
        limit: float = float("inf"),
    ):
        self.engine = Engine(device=device, **engine)
        self.device = self.engine.torch_device()
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # more threads would depend on other processes
        self.size, self.precisions, self.data = size, precisions, data
        self.cache = cache  # cache of torch's compiler, empty at first
        self.ends = time.monotonic() + limit
        self.found: dict[str, Any] = {}
        self.floors: dict[str, dict[str, float]] = {}

    @property
    def left(self) -> float:
        """Seconds until no further measurement starts."""
        return self.ends - time.monotonic()

    def comparable(self, row: str) -> bool:
        """Return True if the targets and references of a row apply to this device and these sizes."""
        return self.size.network == Size.network and (row == "cpu") == (self.device.type == "cpu")

    @property
    def compiles(self) -> bool:
        """True if the engine compiles."""
        return self.engine.compiles()

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a result that several figures use. It is measured once; if that fails, it fails for all."""
        if name not in self.found:
            try:
                self.found[name] = measure()
            except Exception as error:
                self.found[name] = MeasurementError(reason(error))  # the error itself would keep tensors alive
        if isinstance(self.found[name], MeasurementError):
            raise MeasurementError(*self.found[name].args)
        return self.found[name]

    def floor(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the numbers of a handwritten loop; empty if it fails, so that ours are still measured."""
        try:
            self.floors[name] = self.once(f"floor, {name}", measure)
        except Exception as error:
            if name not in self.floors:
                print(f"floor, {name}: {reason(error)}", flush=True)
            self.floors[name] = {}
        return self.floors[name]


def algorithm(method: str, inner_steps: int = 1) -> Algorithm:
    """Return a method with its defaults; POGM as in the authors' code, so that figures of all versions compare."""
    if method == "POGM":
        return POGM(kappa=0.5, inner_steps=inner_steps, centre="mean", meta_lr=0.5)
    return algorithm_class(method)()


@contextmanager
def use_cache(folder: str) -> Iterator[None]:
    """Use a folder as the cache of torch's compiler and of Triton, in this process and its child processes."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ[names[0]] = folder
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def command(script: str, arguments: Sequence[str]) -> str:
    """Return the command line, without the folders of absolute paths."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return " ".join(["python", f"benchmarks/{script}", *words])


def machine(device: torch.device) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def facts(name: str, device: torch.device, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the first fields of every file of results: benchmark, device, version of torch, command."""
    about = {"device": machine(device), "torch": torch.__version__, "command": command(f"{name}.py", arguments)}
    return {"benchmark": name, **about}


def engine_options(words: Sequence[str]) -> dict[str, Any]:
    """Return fields of the engine from texts ``name=value``."""
    known = {part.name: part.default for part in dataclasses.fields(Engine)}
    options: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known or name == "device" or not value:
            raise UsageError(
                f"Expected NAME=VALUE with a name among {', '.join(sorted(known.keys() - {'device'}))}; "
                f"found {word!r}. Leave it out, or choose one of these."
            )
        options[name] = value.lower() in ("true", "on", "1") if isinstance(known[name], bool) else value
    return options
