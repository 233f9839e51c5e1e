"""How to compute: on what, and by which of several ways to the same numbers."""

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import nn

from pogm._system.errors import UsageError, unknown

CHOICES = {
    "compile": ("auto", "on", "off"),
    "domains": ("auto", "loop", "streams", "vmap"),
    "trials": ("auto", "apart", "vmap"),
    "images": ("auto", "resident", "streamed"),
    "trajectories": ("auto", "device", "bf16", "host"),
}
SMALL = 64 * 64  # pixels of an image
FEW = 2**17  # weights: with more, a CPU is faster without vmap
LONG = 1000  # minibatches: what fusing saves is then about what compiling takes


@dataclass(frozen=True)
class Engine:
    """How to compute. None of it changes what is computed, beyond rounding."""

    device: str = "cpu"
    capture: bool = True  # record the step as a CUDA graph, on a GPU
    compile: str = "off"  # fuse operations with torch's compiler; auto does on a GPU that it can compile for
    domains: str = "auto"  # one after the other in a "loop", side by side in "streams", or as one by "vmap"
    trials: str = "auto"  # of one session: as one by "vmap", or "apart", on a GPU side by side
    images: str = "auto"  # "resident" on the device or "streamed" to it; auto streams what would fill half of it
    trajectories: str = "auto"  # with their optimizers: on the "device", there in "bf16", on the "host" if auto must
    memory_gb: float | None = None  # for these and the model, on the device (default: half of what is free)
    deterministic: bool = False  # on a GPU, repeat runs bit for bit; slower, and some operations are refused

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(f"a choice of {name}", getattr(self, name), choices)
        if self.memory_gb is not None and not self.memory_gb >= 0:
            raise UsageError(f"Expected a memory_gb of at least 0; found {self.memory_gb}. Leave it out.")

    def place(self) -> torch.device:
        """The device, checked."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise UsageError(f"Expected a device such as cpu, cuda or cuda:1; found {self.device!r}. Choose one.")
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError("Expected a CUDA device; found none that torch can use. Pass --device cpu.")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"Expected one of {torch.cuda.device_count()} GPUs; found {name!r}. Count from cuda:0.")
        return device

    def compiles(self) -> bool:
        """Whether to fuse operations."""
        if self.compile == "auto":
            return self.place().type == "cuda" and find_spec("triton") is not None
        return self.compile == "on"

    def for_steps(self, steps: int) -> "Engine":
        """The engine for a run of so many minibatches: a short one is over before it is compiled."""
        return replace(self, compile="off") if self.compile == "auto" and steps < LONG else self

    def way_over_domains(self, network: nn.Module, pixels: int) -> str:
        """How a round goes over its domains; small images leave room for streams on a GPU."""
        if self.domains != "auto":
            return self.domains
        if self._gains_by_mapping(network):
            return "vmap"
        return "streams" if self.place().type == "cuda" and pixels <= SMALL else "loop"

    def maps_trials(self, network: nn.Module) -> bool:
        """Whether trials train as one by ``vmap``: with convolutions, that takes longer than one after the other."""
        if self.trials != "auto":
            return self.trials == "vmap"
        # A deterministic trial gives the same bits in a batch and alone: an interrupted batch goes on trial by trial.
        return not self.deterministic and self._gains_by_mapping(network)

    def _gains_by_mapping(self, network: nn.Module) -> bool:
        """Networks of linear layers do, on a CPU those with few weights."""
        few = sum(leaf.numel() for leaf in network.parameters()) <= FEW
        return all_linear(network) and (few or self.place().type == "cuda")


def all_linear(network: nn.Module) -> bool:
    """Whether every weight is a linear layer's: K small products then make one batched one."""
    owners = [module for module in network.modules() if next(module.parameters(recurse=False), None) is not None]
    return all(isinstance(module, nn.Linear) for module in owners)
