"""Options of the engine: device and execution strategy. They change results at most by rounding."""

import re
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from pogm._system.errors import UsageError, shorten, unknown_name_error

CHOICES = {
    "compile": ("auto", "on", "off", "dynamic"),
    "domains": ("auto", "loop", "streams", "vmap"),
    "trials": ("auto", "apart", "vmap"),
    "images": ("auto", "resident", "streamed"),
    "trajectories": ("auto", "device", "bf16", "host"),
}
SMALL_IMAGE_PIXELS = 64 * 64  # pixels of a small image
FEW_WEIGHTS = 2**17  # weights above which vmap is slower on a CPU


@dataclass(frozen=True)
class Engine:
    """Device and execution strategy of sessions."""

    device: str = "cpu"  # cpu, cuda, cuda:1, ... or auto
    capture: bool = True  # on a GPU, record the step as a CUDA graph
    # Compile parts of the step by torch.compile: "on", "off", "auto" (on a GPU with Triton), or "dynamic" (one code for
    # all minibatch sizes).
    compile: str = "off"
    domains: str = "auto"  # train the domains in a "loop", on parallel CUDA "streams" or by "vmap"
    trials: str = "auto"  # train the trials of a session by "vmap" or "apart" (on a GPU, on parallel CUDA streams)
    images: str = "auto"  # keep images "resident" on the device, or "streamed" to it; auto: at most half of free memory
    trajectories: str = "auto"  # where to keep trajectories and inner optimizer states; auto: "host" if they do not fit
    memory_gb: float | None = None  # memory on the device for these and the model (default: half of the free memory)
    micro_batch: int | None = None  # samples whose activations are in memory at once (default: those of a whole pass)
    deterministic: bool = False  # on a GPU, give the same bits in every run; slower, and some operations are refused

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown_name_error(f"a choice of {name}", getattr(self, name), choices)
        if self.compile == "dynamic" and self.deterministic:
            raise UsageError(
                "Expected compile='on' for a deterministic run, because code for all minibatch sizes depends on the "
                "size of the first run; found 'dynamic'. Pass --compile on."
            )
        if self.memory_gb is not None and not self.memory_gb >= 0:
            raise UsageError(f"Expected a memory_gb of at least 0; found {self.memory_gb}. Leave it out.")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"Expected a micro_batch of at least 1; found {self.micro_batch}. Leave it out.")

    def torch_device(self) -> torch.device:
        """Return the device.

        Raises:
            UsageError: The name is not that of a device, or torch cannot use the device.
        """
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
            raise UsageError(f"Expected a device such as cpu or cuda:1; found {shorten(self.device)}. Choose one.")
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError("Expected a CUDA device; found none that torch can use. Pass --device cpu.")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"Expected one of {torch.cuda.device_count()} GPUs; found {name!r}. Count from cuda:0.")
        return device

    def compiles(self) -> bool:
        """Return True if marked functions are compiled."""
        if self.compile == "auto":
            return self.torch_device().type == "cuda" and find_spec("triton") is not None
        return self.compile in ("on", "dynamic")

    def mixes_batch_sizes(self) -> bool:
        """Return True if trials with different minibatch sizes may train in one session.

        Under ``vmap`` all trials have the same shapes. A deterministic session has one minibatch size, because it is
        compiled for each size.
        """
        return self.trials != "vmap" and not self.deterministic

    def choose_domain_strategy(self, network: nn.Module, pixels: int) -> str:
        """Return "loop", "streams" or "vmap". Streams are for small images, which use a small part of a GPU.

        Micro-batches need a loop: the others have the activations of all domains in memory.

        Raises:
            UsageError: The engine asks for streams on a CPU.
        """
        if self.domains == "streams" and self.torch_device().type != "cuda":
            raise UsageError("Expected a GPU for domains='streams'; found a CPU. Choose domains='loop'.")
        if self.domains != "auto":
            return self.domains
        if self.micro_batch is not None:
            return "loop"
        if self._is_faster_by_vmap(network):
            return "vmap"
        return "streams" if self.torch_device().type == "cuda" and pixels <= SMALL_IMAGE_PIXELS else "loop"

    def uses_vmap_for_trials(self, network: nn.Module) -> bool:
        """Return True if the trials of a session train by ``vmap``. With convolutions this is slower than a loop."""
        if self.trials != "auto":
            return self.trials == "vmap"
        # A deterministic trial must give the same bits in a batch and alone, because a batch that was interrupted is
        # resumed trial by trial.
        return not self.deterministic and self.micro_batch is None and self._is_faster_by_vmap(network)

    def _is_faster_by_vmap(self, network: nn.Module) -> bool:
        """Return True for networks of linear layers; on a CPU, only for those with few weights."""
        few = sum(leaf.numel() for leaf in network.parameters()) <= FEW_WEIGHTS
        return all_linear(network) and (few or self.torch_device().type == "cuda")


def all_linear(network: nn.Module) -> bool:
    """Return True if only linear layers have weights: K small matrix products then become one batched product."""
    owners = [module for module in network.modules() if next(module.parameters(recurse=False), None) is not None]
    return all(isinstance(module, nn.Linear) for module in owners)
