"""What all measurements of a run share: sizes, the engine, the time that is left, and floors that several need."""

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

Measurement = tuple[str, Callable[[], Figure]]  # what it is called, and how to get it


@dataclass(frozen=True)
class Size:
    """How much of everything; the protocol's, unless told otherwise."""

    steps: int = 5001  # of a ColoredMNIST trial
    together_steps: int = 1001  # of those that share the device: the rest is extrapolated
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
    compiles: bool = True  # whether the floors are

    protocol: int = 5001  # what fewer steps are extrapolated to


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
    """What all measurements of one run share."""

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
            torch.set_num_threads(1)  # more would wait for whatever else runs here
        self.size, self.precisions, self.data = size, precisions, data
        self.cache = cache  # of torch's compiler, empty
        self.ends = time.monotonic() + limit
        self.found: dict[str, Any] = {}
        self.floors: dict[str, dict[str, float]] = {}

    @property
    def left(self) -> float:
        """Seconds until no further measurement begins."""
        return self.ends - time.monotonic()

    def comparable(self, row: str) -> bool:
        """Whether what must be reached, and what others took, is for this device and these sizes."""
        return self.size.network == Size.network and (row == "cpu") == (self.device.type == "cpu")

    @property
    def compiles(self) -> bool:
        """Whether the engine does."""
        return self.engine.compiles()

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """What several figures are made of, measured for the first of them; if that failed, it fails for all."""
        if name not in self.found:
            try:
                self.found[name] = measure()
            except Exception as error:
                self.found[name] = MeasurementError(reason(error))  # and not the error, whose frames hold on to tensors
        if isinstance(self.found[name], MeasurementError):
            raise MeasurementError(*self.found[name].args)
        return self.found[name]

    def floor(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Numbers of a loop written by hand; empty where it failed, which keeps nothing of ours from being measured."""
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
def using_cache(folder: str) -> Iterator[None]:
    """Let torch's compiler, and that of its kernels, keep here what they make: in this process and those it starts."""
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
    """The command that was run, with nothing in it of where this machine keeps its files."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return " ".join(["python", f"benchmarks/{script}", *words])


def machine(device: torch.device) -> str:
    """What it ran on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def facts(name: str, device: torch.device, arguments: Sequence[str]) -> dict[str, Any]:
    """What every file of results begins with."""
    about = {"device": machine(device), "torch": torch.__version__, "command": command(f"{name}.py", arguments)}
    return {"benchmark": name, **about}


def engine_options(words: Sequence[str]) -> dict[str, Any]:
    """``name=value`` for fields of the engine."""
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
